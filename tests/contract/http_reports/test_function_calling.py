"""Function calling as benchmarks of it ask: one tool, several, parallel calls, and none that is of use."""

import asyncio
import json
from typing import Any, NamedTuple

import httpx2
import jsonschema
import pytest

from tests.contract.http_reports.message_rig import PLAIN, Answer, chat, tool
from tests.contract.http_reports.test_tools_with_formats import tokens_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.parametrize("demo", ["tokens"], indirect=True),
]

TEXT, NUMBER, WHOLE, FLAG = ({"type": kind} for kind in ("string", "number", "integer", "boolean"))


def listed(item: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, **more}


def of(required: str = "", **properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties, "required": required.split()}


SHAPES: dict[str, dict[str, Any]] = {
    "area": of("base height", base=NUMBER, height=NUMBER, unit={"type": "string", "default": "cm"}),
    "factorial": of("n", n={"type": "integer", "minimum": 0}),
    "weather": of("place", place=TEXT, unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
    "roots": of("a b c", a=WHOLE, b=WHOLE, c=WHOLE, real={"type": "boolean", "default": True}),
    "mean": of("values", values=listed(NUMBER, minItems=1, maxItems=4)),
    "matrix": of("rows", rows=listed(listed(WHOLE, maxItems=2), maxItems=2)),
    "point": of("at", at={"type": "array", "prefixItems": [NUMBER, NUMBER], "minItems": 2, "maxItems": 2}),
    "book": of("trip", trip=of("start seats", start=TEXT, seats={"type": "integer", "maximum": 9})),
    "deep": of("a", a=of("b", b=of("c", c=of("d", d=FLAG)))),
    "open": of(),
    "no_schema": {},
    "type_of_null": {"type": None, "properties": {"x": FLAG}},
    "type_or_null": {"type": ["object", "null"], "properties": {"x": FLAG}},
    "any_of": of("id", id={"anyOf": [TEXT, WHOLE]}),
    "nullable": of("note", note={"type": ["string", "null"]}),
    "constant": of("kind", kind={"const": "dog"}),
    "date": of("day", day={"type": "string", "format": "date"}),
    "pattern": of("code", code={"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"}),
    "mixed_enum": of("size", size={"enum": [1, "two", None, 2.5]}),
    "map": of("prices", prices={"type": "object", "additionalProperties": NUMBER, "maxProperties": 2}),
    "closed": {**of("x", x=FLAG), "additionalProperties": False},
    "tagged": of(
        "pet",
        pet={
            "oneOf": [of("t", t={"const": "cat"}), of("t n", t={"const": "dog"}, n=WHOLE)],
        },
    ),
    "defs": {**of("at", at={"$ref": "#/$defs/p"}), "$defs": {"p": of("x", x=NUMBER)}},
    "unicode": of("größe", größe=WHOLE),
    "odd-name_1": of("$in the-way", **{"$in": FLAG, "the-way": FLAG}),
    "unique": of("ids", ids=listed(WHOLE, uniqueItems=True, maxItems=2)),
}
"""Tools by name, in the shapes of benchmarks."""


class Case(NamedTuple):
    """A request: the tools that it offers, and what it chooses."""

    names: tuple[str, ...]
    fields: dict[str, Any]
    most_calls: int = 1


ONE = {"parallel_tool_calls": False}
SIMPLE = [Case((name,), {"tool_choice": "required"} | ONE) for name in SHAPES]
NAMED = {"type": "function", "function": {"name": "book"}}
MULTIPLE = [
    Case(("area", "factorial", "weather", "roots"), {"tool_choice": "required"} | ONE),
    Case(("weather", "book", "date"), {"tool_choice": NAMED}),
    Case(tuple(SHAPES), {"tool_choice": "required"} | ONE),
]
PARALLEL = [
    Case(("weather",), {"tool_choice": "required"}, 99),
    Case(("mean", "closed"), {"tool_choice": "required", "parallel_tool_calls": True}, 99),
]


async def endings(http: httpx2.AsyncClient) -> dict[str, int]:
    """Return a bias that ends the values of the model soon, and lets it write no thought."""
    biases = (('"', 100), ("]", 90), ("}", 70), (",", 40), ("<think>", -100))
    return {(await tokens_of(http, text))[0]: bias for text, bias in biases}


def check(answer: Answer, case: Case) -> None:
    """Check that every call that is whole is one of a tool that is offered, and fits its schema."""
    is_cut = answer.reason == "length"
    whole = answer.calls[: len(answer.calls) - is_cut]
    assert answer.reason in ("tool_calls", "length") and whole and not answer.content
    assert len(answer.calls) <= case.most_calls and is_cut <= (case.most_calls > 1)
    for name, arguments in whole:
        assert name in case.names
        jsonschema.validate(json.loads(arguments), {**SHAPES[name], "type": "object"})


@pytest.mark.parametrize("cases", [SIMPLE, MULTIPLE, PARALLEL], ids=["simple", "multiple", "parallel"])
async def test_every_call_fits_its_schema(demo: httpx2.AsyncClient, cases: list[Case]) -> None:
    bias = await endings(demo)

    async def answers(case: Case) -> None:
        tools = [tool(SHAPES[name], name) for name in case.names]
        asked = {"messages": [{"role": "user", "content": "Call."}], "tools": tools, "logit_bias": bias}
        limits = {"temperature": 0, "max_tokens": 150}
        whole, streamed = await chat(demo, model="demo", **asked, **case.fields, **limits, **PLAIN)
        assert whole == streamed, case
        check(whole, case)

    # NOTE: a few at a time, since each is two requests and the demo has 16 places.
    for first in range(0, len(cases), 4):
        await asyncio.gather(*map(answers, cases[first : first + 4]))


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "none"}, {"tool_choice": "auto"} | ONE])
async def test_a_question_that_no_tool_helps_with_is_answered(
    demo: httpx2.AsyncClient, fields: dict[str, Any]
) -> None:
    (opening, *_), *_ = await tokens_of(demo, "<tool_call>"), None
    tools = [tool(SHAPES[name], name, strict=name == "closed") for name in ("area", "closed")]
    asked = {"messages": [{"role": "user", "content": "Hello."}], "tools": tools, "max_tokens": 20}
    without = {"logit_bias": {opening: -100}, "temperature": 0}
    for answer in await chat(demo, model="demo", **asked, **fields, **without, **PLAIN):
        assert not answer.calls and answer.reason in ("stop", "length")
        assert answer.content or answer.reasoning
