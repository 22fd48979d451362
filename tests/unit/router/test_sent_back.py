"""Whatever a response holds can be sent back, in every form that client libraries give it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib._parsing._responses import parse_response
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ParsedChatCompletionMessage
from openai.types.responses import Response
from pydantic import BaseModel

from router.config import LimitsConfig
from router.http.chat import ChatRequest
from router.http.chat_objects import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    message_delta,
    whole_message,
)
from router.http.chat_objects import (
    ChatCompletion as OwnCompletion,
)
from router.http.messages import conversation_of
from router.http.parsing import parse
from router.http.responses.conversion import conversation_of as conversation_of_items
from router.http.responses.fields import ResponsesRequest
from router.http.responses.objects import ResponseObject
from router.http.responses.output import Output
from router.text.template_fit import arguments_of
from router.tools.parts import CallPart, Parts, join_parts

LIMITS = LimitsConfig()
USER = {"role": "user", "content": "hi"}
ARGUMENTS = st.text(max_size=6) | st.sampled_from(
    ["{}", '{"a": "b"}', '{"a": "', "[1]", "5", "null", "{bad", ""]
)
MARKS = [
    ("index", 0),
    ("cache_control", {"type": "ephemeral"}),
    ("provider_specific_fields", {"refusal": None}),
    ("thinking_blocks", None),
    ("reasoning_details", []),
    ("id", "msg_1"),
    ("a_key_of_next_year", {"x": [1]}),
]
"""Keys that libraries and frameworks add to what they hand back."""


@st.composite
def messages(draw: st.DrawFn) -> list[Parts]:
    """Draw the parts of a message, in the order in which a model writes them."""
    calls = draw(st.lists(ARGUMENTS, max_size=3))
    texts = [Parts(reasoning=draw(st.text(max_size=4))), Parts(content=draw(st.text(max_size=4)))]
    return texts + [
        Parts(calls=(CallPart(index, f"call_{index}", "f", arguments),))
        for index, arguments in enumerate(calls)
    ]


def forms(found: BaseModel) -> Iterator[dict[str, Any]]:
    """Yield an object of the package in every form that it is sent back in."""
    for options in ({}, {"exclude_none": True}, {"exclude_unset": True}, {"exclude_defaults": True}):
        yield json.loads(json.dumps(found.model_dump(mode="json", **options)))
    yield json.loads(found.model_dump_json())
    yield {**found.model_dump(mode="json"), **dict(MARKS)}


def own_chat(parts: list[Parts], reason: Any) -> dict[str, Any]:
    choice = ChatChoice(
        index=0, message=whole_message("", join_parts(parts)), logprobs=None, finish_reason=reason
    )
    head = {"id": "a", "created": 1, "model": "m", "object": "chat.completion"}
    return dict(json.loads(OwnCompletion(**head, choices=[choice]).to_json()))


def own_chunks(parts: list[Parts]) -> Iterator[ChatCompletionChunk]:
    head = {"id": "a", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    for number, part in enumerate(parts):
        reason = "stop" if number + 1 == len(parts) else None
        delta = message_delta("", part, is_first=not number)
        choice = ChatChunkChoice(index=0, delta=delta, logprobs=None, finish_reason=reason)
        yield ChatCompletionChunk.model_validate_json(ChatChunk(**head, choices=[choice]).to_json())


@given(messages(), st.sampled_from(["stop", "length", "tool_calls"]))
def test_a_chat_takes_every_form_of_its_own_messages(parts: list[Parts], reason: str) -> None:
    plain = own_chat(parts, reason)
    message = ChatCompletion.model_validate(plain).choices[0].message
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    for chunk in own_chunks(parts):
        list(state.handle_chunk(chunk))
    streamed = state.current_completion_snapshot.choices[0].message
    parsed = ParsedChatCompletionMessage[Any].model_validate(
        {**plain["choices"][0]["message"], "parsed": {"a": 1}}
    )
    expected = [text(message.content), *[call["function"]["arguments"] for call in calls_of(plain)]]
    for form in (
        plain["choices"][0]["message"],
        *(f for each in (message, streamed, parsed) for f in forms(each)),
    ):
        calls = form.get("tool_calls") or ()
        for call in calls:
            call["function"]["parsed_arguments"] = {"a": 1}
        answers = [{"role": "tool", "tool_call_id": call["id"], "content": "cut"} for call in calls]
        body = parse(ChatRequest, {"messages": [USER, form, *answers, USER]}, LIMITS)
        sent = body.messages[1]
        assert [sent.content, *[call.function.arguments for call in sent.tool_calls or ()]] == expected
        calls = conversation_of(body.messages).within(10_000)[1].get("tool_calls", ())
        assert [call["function"]["arguments"] for call in calls] == expected[1:]


def text(content: str | None) -> str:
    return content or ""


def calls_of(plain: dict[str, Any]) -> list[Any]:
    return list(plain["choices"][0]["message"].get("tool_calls") or ())


@given(messages(), st.booleans())
def test_responses_take_every_form_of_their_own_items(parts: list[Parts], is_cut: bool) -> None:
    output = Output(lambda prefix: f"{prefix}1")
    for part in parts:
        list(output.add(part))
    list(output.finish("incomplete" if is_cut else "completed"))
    head = {"id": "resp_1", "created_at": 1, "model": "m", "status": "completed"}
    plain = json.loads(ResponseObject(**head, output=output.items).to_json())
    found = Response.model_validate(plain)
    parsed = parse_response(response=found, input_tools=(), text_format=omit)
    items = [plain["output"]]
    for listed in (found.output, parsed.output):
        items += [list(each) for each in zip(*map(forms, listed), strict=True)]
    expected = None
    for form in items:
        answers = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "cut"}
            for item in form
            if item["type"] == "function_call"
        ]
        body = parse(ResponsesRequest, {"input": [USER, *form, *answers, USER]}, LIMITS)
        rendered = conversation_of_items(body).within(10_000)
        assert expected is None or rendered == expected
        expected = rendered


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"city": "Os', {"city": "Os"}),
        ('{"a": [1, {"b": "x', {"a": [1, {"b": "x"}]}),
        ('{"a": 1, "b', {"a": 1}),
        ("NaN", {"arguments": "NaN"}),
        ("", {}),
        ("null", {}),
        ("{bad", {"arguments": "{bad"}),
        ("[1", {"arguments": [1]}),
        ("5", {"arguments": 5}),
        (r'{"\ud800": 1}', {"arguments": r'{"\ud800": 1}'}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
    ],
)
def test_arguments_are_an_object_with_what_the_model_wrote(text: str, arguments: dict[str, Any]) -> None:
    assert arguments_of(text) == arguments


@given(st.text() | ARGUMENTS)
def test_arguments_can_be_written_as_utf8(text: str) -> None:
    assert json.dumps(arguments_of(text), ensure_ascii=False).encode()
