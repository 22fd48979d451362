"""`/v1/responses` as a chat, and the events of its items."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flyserve.core.grammar import Grammar, GrammarKind
from flyserve.core.request import SamplingParams
from flyserve.core.types import Mode
from router.config import LimitsConfig
from router.http.parsing import parse
from router.http.responses.conversion import asked_tools, chat_options, conversation_of
from router.http.responses.fields import ResponsesRequest
from router.http.responses.output import Output
from router.json_text import is_json_object
from router.text.stop_strings import StopStrings
from router.tools.hermes import Hermes
from router.tools.message import Message, MessageFormat
from router.tools.parts import CallPart, Parts
from tests.support.cpu_growth import assert_linear

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
SENT = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def asked(**fields: Any) -> ResponsesRequest:
    return parse(ResponsesRequest, {"model": "m", "input": "hi", **fields}, LimitsConfig())


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("hi", [{"role": "user", "content": "hi"}]),
        ([{"role": "developer", "content": "Be brief."}], [{"role": "developer", "content": "Be brief."}]),
        (
            [thought("hm"), said("Let me see."), CALL],
            [
                {
                    "role": "assistant",
                    "content": "Let me see.",
                    "reasoning_content": "hm",
                    "tool_calls": [SENT],
                }
            ],
        ),
        (
            [said("a"), CALL, said("b"), CALL],
            [{"role": "assistant", "content": "a\nb", "tool_calls": [SENT, SENT]}],
        ),
        ([CALL, CALL], [{"role": "assistant", "content": "", "tool_calls": [SENT, SENT]}]),
        (
            [CALL, {"type": "function_call_output", "call_id": "c1", "output": "18 C"}, said("Mild.")],
            [
                {"role": "assistant", "content": "", "tool_calls": [SENT]},
                {"role": "tool", "tool_call_id": "c1", "content": "18 C"},
                {"role": "assistant", "content": "Mild."},
            ],
        ),
        ([said("a"), said("b")], [{"role": "assistant", "content": each} for each in "ab"]),
        ([thought("hm"), {"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
    ],
)
def test_items_become_messages(items: Any, messages: list[dict[str, Any]]) -> None:
    assert conversation_of(asked(input=items)).messages == messages
    instructed = conversation_of(asked(input=items, instructions="Hello.")).messages
    assert instructed == [{"role": "system", "content": "Hello."}, *messages]


def test_other_fields_are_those_of_a_chat() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    found = asked(
        max_output_tokens=5,
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        speculation={"mode": "exact"},
        seed=-2,
        top_k=-1,
        store=False,
        include=["reasoning.encrypted_content"],
    )
    options, tools = chat_options(found), asked_tools(found)
    assert (options.model, options.max_completion_tokens) == ("m", 5)
    assert options.grammar == Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
    assert options.speculation is not None and options.speculation.params.mode is Mode.EXACT
    assert options.sampling(SamplingParams()) == SamplingParams(seed=2**64 - 2)
    assert tools.choice == ("required", ("f",), True)
    assert [(path, each.name, each.strict) for path, each in tools.functions.items()] == [
        ("tools[0]", "f", True)
    ]


PARTS = st.one_of(
    st.builds(Parts, reasoning=st.text(max_size=3)),
    st.builds(Parts, content=st.text(max_size=3)),
    st.builds(lambda text: Parts(calls=(CallPart(0, arguments=text),)), st.text(max_size=3)),
    st.just(Parts(calls=(CallPart(0, "c", "f"),))),
)


def is_done(event: Any, index: int) -> bool:
    return bool(event["type"] == "response.output_item.done" and event["output_index"] == index)


@given(st.lists(PARTS, max_size=12))
def test_the_events_build_the_items(all_parts: list[Parts]) -> None:
    output, silent = Output(lambda prefix: prefix), Output(lambda prefix: prefix, makes_events=False)
    events: list[Any] = []
    for parts in all_parts:
        num_items, ends_item = len(output.items), output.ends_item(parts)
        added = list(output.add(parts))
        assert ends_item == any(is_done(event, num_items - 1) for event in added)
        events += added
        assert list(silent.add(parts)) == []
    events += output.finish("completed")
    assert list(silent.finish("completed")) == [] and silent.items == output.items
    texts: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert done == [item.model_dump() for item in output.items] and added == list(range(len(done)))
    for index, item in enumerate(done):
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        is_cut = item["type"] == "function_call" and not is_json_object(whole)
        assert whole == texts.get(index, "") and item["status"] == ("incomplete" if is_cut else "completed")


@pytest.mark.parametrize(
    "parts",
    [
        Parts(reasoning="\N{PANDA FACE}" * 64),
        Parts(content="\N{PANDA FACE}" * 64),
        Parts(calls=(CallPart(0, "", "", "\N{PANDA FACE}" * 64),)),
    ],
)
def test_the_events_of_an_item_cost_its_length(parts: Parts) -> None:
    def write(number: int) -> None:
        output = Output(lambda prefix: prefix)
        list(output.add(Parts(calls=(CallPart(0, "c", "f"),))))
        for _ in range(number):
            list(output.add(parts))
        list(output.finish("completed"))

    assert_linear(write, 6_000)


WRITTEN = '<tool_call>{"name": "f", "arguments": {"a": "b c"}}</tool_call>'
MIXED = f"Hi.\n{WRITTEN}}}\nand {WRITTEN}{WRITTEN} then"
ITEMS = [
    ("message", "Hi."),
    ("function_call", '{"a": "b c"}'),
    ("message", "}\nand"),
    ("function_call", '{"a": "b c"}'),
    ("function_call", '{"a": "b c"}'),
    ("message", "then"),
]


@given(st.sets(st.integers(1, len(MIXED))))
@example(set())
@example({MIXED.index("c")})
def test_items_are_in_the_order_of_the_text_however_it_arrives(cuts: Collection[int]) -> None:
    message = Message(MessageFormat(Hermes, {"f": {}}), StopStrings())
    output = Output(lambda prefix: prefix)
    for length, char in enumerate(MIXED, start=1):
        message.push(1, char)
        if length in cuts:
            list(output.add(message.take()))
    message.finish("")
    events = [*output.add(message.take()), *output.finish("completed")]
    found = [item.model_dump() for item in output.items]
    texts = [each.get("arguments") or each["content"][0]["text"].strip() for each in found]
    assert list(zip((each["type"] for each in found), texts, strict=True)) == ITEMS
    assert {each["status"] for each in found} == {"completed"} and events
