"""Schemas of tools in public reports: references, annotations, and keywords that cannot be applied."""

import asyncio
import json
from collections.abc import Mapping
from itertools import cycle
from typing import Any

import httpx2
import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.contract.http_reports.message_rig import PLAIN, chat, flat, respond, tool

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.parametrize("demo", ["spelled"], indirect=True),
]


class Closed(BaseModel):
    """A type without further fields."""

    model_config = ConfigDict(extra="forbid")


class Place(Closed):
    city: str = Field(max_length=3)
    note: bool


class Trip(Closed):
    start: Place
    stops: list[Place] = Field(min_length=1, max_length=2)


class Node(Closed):
    value: bool
    children: list["Node"] = Field(max_length=1)


class Tree(Closed):
    root: Node


def described(properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    closed = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed, **more}


COLOUR = {"enum": ["red", "green"]}
REFERRING = {
    "vllm#15236 pydantic: nested types": Trip.model_json_schema(),
    "vllm#16677 pydantic: a type that holds itself": Node.model_json_schema(),
    "vllm#16677 pydantic: recursion within another type": Tree.model_json_schema(),
    "zod: definitions": described({"a": {"$ref": "#/definitions/c"}}, definitions={"c": COLOUR}),
    "zod: a reference to a property": described({"a": COLOUR, "b": {"$ref": "#/properties/a"}}),
    "zod: the whole schema again": {
        "type": "object",
        "properties": {"last": {"type": "boolean"}, "next": {"$ref": "#"}},
        "required": ["last"],
        "additionalProperties": False,
    },
    "escapes in a reference": described({"a": {"$ref": "#/$defs/a~1b%20c"}}, **{"$defs": {"a/b c": COLOUR}}),
    "zod: a union without a type": {"anyOf": [described({"a": COLOUR}), described({"b": {"type": "null"}})]},
}
"""Schemas by their thread or their author, and what they have."""


async def called(
    http: httpx2.AsyncClient, *tools: dict[str, Any], tool_choice: Any = "required"
) -> tuple[list[Any], tuple[str, ...]]:
    """Return the arguments of the only call, from both APIs, whole and streamed, and the warnings.

    In a chat the model ends lists and objects as soon as it may.
    """
    asked = {"model": "demo", "temperature": 0, "parallel_tool_calls": False, **PLAIN}
    ends = [(await http.post("/tokenize", json={"model": "demo", "prompt": end})).json() for end in "]}"]
    bias = {str(end["tokens"][0]): 50 for end in ends}
    messages = [{"role": "user", "content": "Where?"}]
    flat_tools = [*map(flat, tools)]
    choice = flat(tool_choice) if isinstance(tool_choice, dict) else tool_choice
    chats, responses = await asyncio.gather(
        chat(http, messages=messages, tools=tools, tool_choice=tool_choice, logit_bias=bias, **asked),
        respond(http, input="Where?", tools=flat_tools, tool_choice=choice, max_output_tokens=120, **asked),
    )
    is_cut = "incomplete" in responses[0].reason  # a type that holds itself may have no end
    answers = [*chats, *(() if is_cut else responses)]
    assert {answer.reason for answer in answers} <= {"tool_calls", "completed completed"}
    assert len({answer.warnings for answer in (*chats, *responses)}) == 1
    return [json.loads(answer.calls[0][1]) for answer in answers], answers[0].warnings


@pytest.mark.parametrize(
    ("name", "choice"), list(zip(REFERRING, cycle(("required", "named", "strict")), strict=False))
)
async def test_references_in_a_tools_schema_refer_to_that_schema(
    demo: httpx2.AsyncClient, name: str, choice: str
) -> None:
    schema = REFERRING[name]
    asked = "required" if choice == "strict" else choice
    wanted = {"type": "function", "function": {"name": "w"}} if choice == "named" else asked
    tools = [tool(schema, strict=choice == "strict")]
    if choice == "named":
        tools.append(tool(described({"$defs": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": COLOUR}}), "other"))
    found, warnings = await called(demo, *tools, tool_choice=wanted)
    for arguments in found:
        jsonschema.validate(arguments, schema)
    assert not warnings


OK = described({"ok": {"const": True}})
ODD = {
    "email-mcp#58 a set": (
        {"type": "array", "items": COLOUR, "maxItems": 2, "uniqueItems": True},
        "uniqueItems",
    ),
    "vllm#16880 zod: the pattern of email()": (
        {"type": "string", "maxLength": 4, "pattern": r"^(?!\\.)[a-z]+$"},
        "pattern",
    ),
    "llama.cpp#14227 not": ({"not": {"const": 1}, "type": "boolean"}, "not"),
    "qwen-code#10520 a condition": ({"type": "boolean", "if": {"const": True}, "then": True}, "if"),
    "a type that does not exist": ({"type": "any", "enum": [1, 2]}, "type"),
    "a reference to nothing": ({"$ref": "#/$defs/none", "type": "boolean"}, "$ref"),
    "a reference to elsewhere": ({"$ref": "https://example.com/x.json", "type": "boolean"}, "$ref"),
    "required as in the third draft": ({"type": "object", "maxProperties": 0, "required": True}, "required"),
    "parts of oneOf that overlap": ({"oneOf": [{"type": "boolean"}, {"enum": [True, False]}]}, "oneOf"),
    "a name without a form": (
        {"type": "object", "maxProperties": 0, "propertyNames": {"pattern": "^a"}},
        "propertyNames",
    ),
}
"""A property by its thread and what it has, and the keyword that cannot be applied."""


@pytest.mark.parametrize("name", ODD)
async def test_a_schema_is_a_hint_unless_it_is_strict(demo: httpx2.AsyncClient, name: str) -> None:
    prop, keyword = ODD[name]
    odd = described({"x": prop, "ok": {"const": True}})
    found, warnings = await called(demo, tool(OK, "good"), tool(odd, "odd"), tool_choice=NAMED_ODD)
    assert all(arguments["ok"] is True and "x" in arguments for arguments in found), "the rest is applied"
    (warning,) = warnings
    assert "'odd'" in warning and f"properties.x.{keyword}" in warning
    asked = {"model": "demo", "messages": [{"role": "user", "content": "Where?"}], "tool_choice": "required"}
    tools = [tool(OK, "good"), tool(odd, "odd", strict=True)]
    refused = await demo.post("/v1/chat/completions", json={**asked, "tools": tools})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "tools")
    assert "'odd'" in error["message"] and f"properties.x.{keyword}" in error["message"]


NAMED_ODD = {"type": "function", "function": {"name": "odd"}}
NOTES = {
    "uniqueItems: false": {"type": "array", "items": COLOUR, "maxItems": 1, "uniqueItems": False},
    "llama.cpp#14227 format: path": {"type": "string", "maxLength": 3, "format": "path"},
    "format: binary": {"type": "string", "maxLength": 3, "format": "binary"},
    "titles, examples and keywords of others": {
        "type": "boolean",
        "title": "T",
        "examples": [1],
        "x-order": 3,
        "nullable": False,
        "deprecated": False,
    },
}


@pytest.mark.parametrize("name", NOTES)
async def test_annotations_assert_nothing_even_if_strict(demo: httpx2.AsyncClient, name: str) -> None:
    schema = described({"x": NOTES[name]})
    found, warnings = await called(demo, tool(schema, strict=True))
    for arguments in found:
        jsonschema.validate(arguments, schema)
    assert not warnings
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    asked = {"model": "demo", "messages": [{"role": "user", "content": "Where?"}], "max_tokens": 300}
    answer, _ = await chat(demo, **asked, response_format=form, temperature=0)
    jsonschema.validate(json.loads(answer.content), schema)


async def test_a_schema_that_cannot_be_applied_leaves_the_others_as_they_are(
    demo: httpx2.AsyncClient,
) -> None:
    broken = tool({"type": "object", "$ref": "#"}, "odd")
    asked = {"model": "demo", "messages": [{"role": "user", "content": "Where?"}], "tool_choice": "required"}
    fields = {**asked, "tools": [broken, tool(OK, "good")], "max_tokens": 9, **PLAIN}
    served = (await demo.post("/v1/chat/completions", json=fields)).json()
    (warning,) = served["warnings"]
    assert "'odd'" in warning and "its schema" in warning
