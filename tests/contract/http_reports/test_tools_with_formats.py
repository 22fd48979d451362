"""Tools together with a format, in public reports: a message is calls or an answer in the format."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import httpx2
import jsonschema
import pytest
from openai import AsyncOpenAI, pydantic_function_tool
from pydantic import BaseModel

from tests.contract.http_reports.message_rig import PLAIN, Answer, chat, flat, respond, tool

pytestmark = pytest.mark.asyncio(loop_scope="package")

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ANSWER = CITY | {"properties": {"x": {"type": "boolean"}}, "required": ["x"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER, "strict": True}}
OBJECT = {"type": "json_object"}
LOOSE, STRICT = tool(CITY), tool(CITY, strict=True)
OTHER = tool(ANSWER, "other", strict=True)
NAMED = {"type": "function", "function": {"name": "w"}}
THINK = {"chat_template_kwargs": {"think": True}, "thinking_token_budget": 3}
CALL, TEXT = True, False
"""The model would begin with a call, or with an answer."""


class Case(NamedTuple):
    """A public report, or a sibling of it.

    Attributes:
        begins_with_call: True if the model would begin with a call.
        fields: Fields of the request.
        tools: Tools that the message may call; empty if it must not.
        most_calls: Most calls of the message.
    """

    thread: str
    symptom: str
    begins_with_call: bool
    fields: dict[str, Any]
    tools: Sequence[str]
    most_calls: int = 1


ONE = {"parallel_tool_calls": False}
CASES = [
    Case(
        "vllm#39929",
        "with a format no tool is called",
        CALL,
        {"tools": [STRICT], "response_format": SCHEMA} | ONE,
        "w",
    ),
    Case(
        "vllm#39929", "the answer is in the format", TEXT, {"tools": [LOOSE], "response_format": SCHEMA}, ""
    ),
    Case(
        "vllm#39929",
        "the same with any object",
        CALL,
        {"tools": [STRICT], "response_format": OBJECT} | ONE,
        "w",
    ),
    Case(
        "vllm#39929", "an answer that is any object", TEXT, {"tools": [STRICT], "response_format": OBJECT}, ""
    ),
    Case(
        "openai-agents-python#3709",
        "an output type and strict tools are refused",
        TEXT,
        {"tools": [STRICT, OTHER], "response_format": SCHEMA},
        "",
    ),
    Case(
        "openai-agents-python#3709",
        "two strict tools",
        CALL,
        {"tools": [STRICT, OTHER], "response_format": SCHEMA} | ONE,
        ("w", "other"),
    ),
    Case(
        "vllm#16313",
        "an output type and required tools are refused",
        TEXT,
        {"tools": [LOOSE], "response_format": SCHEMA, "tool_choice": "required"} | ONE,
        "w",
    ),
    Case(
        "vllm#16313",
        "required and strict",
        CALL,
        {"tools": [STRICT], "response_format": SCHEMA, "tool_choice": "required"} | ONE,
        "w",
    ),
    Case(
        "vllm#16313",
        "required and any object",
        TEXT,
        {"tools": [LOOSE], "response_format": OBJECT, "tool_choice": "required"} | ONE,
        "w",
    ),
    Case(
        "vllm#32006",
        "a named tool and an output type are refused",
        TEXT,
        {"tools": [OTHER, LOOSE], "response_format": SCHEMA, "tool_choice": NAMED},
        "w",
    ),
    Case(
        "vllm#32006",
        "a thought before calls and a format",
        CALL,
        {"tools": [STRICT], "response_format": SCHEMA} | ONE | THINK,
        "w",
    ),
    Case(
        "vllm#32006",
        "a thought before an answer in a format",
        TEXT,
        {"tools": [STRICT], "response_format": SCHEMA} | THINK,
        "",
    ),
    Case(
        "vllm#32006",
        "a thought before a required call",
        TEXT,
        {"tools": [LOOSE], "response_format": SCHEMA, "tool_choice": "required"} | ONE | THINK,
        "w",
    ),
    Case(
        "vllm#39929",
        "a choice of vLLM and tools",
        TEXT,
        {"tools": [STRICT], "structured_outputs": {"json": ANSWER}},
        "",
    ),
    Case(
        "vllm#39929",
        "a choice of vLLM lets a tool be called",
        CALL,
        {"tools": [STRICT], "structured_outputs": {"choice": ['{"x": true}']}} | ONE,
        "w",
    ),
    Case(
        "vllm#39929",
        "tools that must not be called",
        CALL,
        {"tools": [STRICT], "response_format": SCHEMA, "tool_choice": "none"},
        "",
    ),
    Case(
        "dynamo#4723",
        "parallel calls and a format",
        CALL,
        {"tools": [STRICT], "response_format": SCHEMA},
        "w",
        50,
    ),
]


def fields_of_responses(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat under their names in `/v1/responses`."""
    form, choice = fields["response_format"], fields.get("tool_choice", "auto")
    return {
        **{name: value for name, value in fields.items() if name != "response_format"},
        "tools": list(map(flat, fields["tools"])),
        "tool_choice": flat(choice) if isinstance(choice, dict) else choice,
        "text": {"format": {"type": form["type"], **form.get("json_schema", {})}},
    }


async def tokens_of(http: httpx2.AsyncClient, text: str) -> list[str]:
    asked = {"model": "demo", "prompt": text}
    return list(map(str, (await http.post("/tokenize", json=asked)).json()["tokens"]))


async def served_fields(http: httpx2.AsyncClient, case: Case) -> dict[str, Any]:
    """Return the fields of a case; those about thoughts only if the model has them."""
    has_thoughts = len(await tokens_of(http, "</think>")) == 1
    return {name: value for name, value in case.fields.items() if has_thoughts or name not in THINK}


async def bias_of(http: httpx2.AsyncClient, begins_with_call: bool) -> dict[str, int]:
    """Make the model begin with a call or with an answer, without a thought, and end objects soon."""
    call, thought, end = [await tokens_of(http, text) for text in ("<tool_call>", "<think>", "}")]
    return {thought[0]: -100, end[0]: 50, call[0]: 100 if begins_with_call else -100}


def check(answer: Answer, case: Case) -> None:
    """Check that a message is whole calls of the tools, or else an answer in the format."""
    is_cut = answer.reason in ("length", "incomplete")
    whole = answer.calls[: len(answer.calls) - is_cut]
    for name, arguments in whole:
        jsonschema.validate(json.loads(arguments), CITY if name == "w" else ANSWER)
    if answer.calls:
        assert whole and not answer.content and {name for name, _ in answer.calls} <= {*case.tools}
        assert len(answer.calls) <= case.most_calls and is_cut <= (case.most_calls > 1)
    else:
        value = json.loads(answer.content)
        assert isinstance(value, dict)
        if case.fields.get("response_format") is not OBJECT:
            jsonschema.validate(value, ANSWER)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.thread} {case.symptom}")
async def test_a_message_is_calls_or_an_answer_in_the_format(demo: httpx2.AsyncClient, case: Case) -> None:
    bias = await bias_of(demo, case.begins_with_call)
    asked = {"model": "demo", "messages": [{"role": "user", "content": "Weather?"}], "logit_bias": bias}
    fields = await served_fields(demo, case)
    whole, streamed = await chat(demo, **asked, **fields, **PLAIN, temperature=0, max_tokens=120)
    assert whole == streamed and bool(whole.calls) == bool(case.tools)
    check(whole, case)
    assert whole.reason in ("tool_calls" if case.tools else "stop", "length")
    assert bool(whole.reasoning) == ("chat_template_kwargs" in fields)


IN_RESPONSES = [
    case
    for case in CASES
    if "tool_choice" in case.fields or (LOOSE not in case.fields["tools"] and SCHEMA in case.fields.values())
]
"""Cases whose answer and whose calls have one form each, whatever the model writes first."""


@pytest.mark.parametrize("demo", ["tokens"], indirect=True)
@pytest.mark.parametrize("case", IN_RESPONSES, ids=lambda case: f"{case.thread} {case.symptom}")
async def test_responses_do_the_same_under_their_own_names(demo: httpx2.AsyncClient, case: Case) -> None:
    fields = fields_of_responses(case.fields) | THINK
    asked = {"model": "demo", "input": "Weather?", "temperature": 0, "max_output_tokens": 300}
    whole, streamed = await respond(demo, **asked, **fields, **PLAIN)
    assert whole == streamed
    if fields["tool_choice"] not in ("auto", "none"):
        assert whole.calls
    check(replace(whole, reason=whole.reason.split()[0]), case._replace(tools=("w", "other")))


class Place(BaseModel):
    """A part of a typed answer."""

    is_far: bool


class Trip(BaseModel):
    """A typed answer, or the arguments of a typed tool."""

    start: Place
    end: Place


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_helpers_of_the_openai_package_get_a_typed_answer_or_a_typed_call(
    demo: httpx2.AsyncClient, choice: Any
) -> None:
    asked: dict[str, Any] = {"model": "demo", "temperature": 0, "tool_choice": choice}
    messages: Any = [{"role": "user", "content": "Where?"}]
    tools = [pydantic_function_tool(Trip, name="w")]
    async with AsyncOpenAI(base_url=f"{demo.base_url}/v1", api_key="none", max_retries=0) as client:
        chats: dict[str, Any] = {"messages": messages, "tools": tools, "max_tokens": 120, **asked}
        parsed = await client.chat.completions.parse(**chats, response_format=Trip)
        async with client.chat.completions.stream(**chats, response_format=Trip) as stream:
            streamed = await stream.get_final_completion()
        typed: dict[str, Any] = {"input": "Where?", "tools": [flat(tools[0])], **asked}
        response = await client.responses.parse(**typed, text_format=Trip, max_output_tokens=120)
    for message in (parsed.choices[0].message, streamed.choices[0].message):
        found = message.parsed or (message.tool_calls or [])[0].function.parsed_arguments
        assert isinstance(found, Trip) and bool(message.tool_calls) >= (choice == "required")
    calls = [item for item in response.output if item.type == "function_call"]
    assert isinstance(response.output_parsed or Trip.model_validate_json(calls[0].arguments), Trip)
