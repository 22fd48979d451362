"""`/v1/responses`, as the `openai` package uses it: text, tools, reasoning, events, and what is refused."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from router.http.responses.objects import OutputItem
from router.http.responses.output import Event, Output
from tests.contract.fakes import dies_at
from tests.contract.http_rig import MODEL, error_of
from tests.contract.test_http_tools import EXACT, F, G, serving

TOOLS: list[Any] = [
    {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False} for name in "fg"
]
ASKED: dict[str, Any] = {"model": MODEL, "input": "the fox", "extra_body": EXACT}
THINKING = f"<think>\nhm {G}</think>\n\nLet me see.\n{F}\n{G}"


async def test_a_text_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, "the quick fox", reasoning_parser="none") as rig:
        found = await rig.openai.responses.create(
            **ASKED, instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=50
        )
        assert (found.status, found.output_text, found.metadata) == ("completed", "the quick fox", {"a": "b"})
        assert found.id.startswith("resp_") and found.instructions == "Be brief." and found.usage is not None
        assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens > 4
        cut = await rig.openai.responses.create(**ASKED, max_output_tokens=2)
        assert cut.status == "incomplete" and cut.output[0].status == "incomplete"
        assert cut.incomplete_details is not None and cut.incomplete_details.reason == "max_output_tokens"


async def test_reasoning_text_and_calls_are_items_alike_whole_and_streamed(tmp_path: Path) -> None:
    async with serving(tmp_path, THINKING) as rig:
        whole = await rig.openai.responses.create(**ASKED, tools=TOOLS, max_output_tokens=200)
        assert [item.type for item in whole.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        reasoning, message, first, second = whole.output
        assert reasoning.content[0].text == 'hm <tool_call>{"name": "g"}</tool_call>'
        assert message.content[0].text == "Let me see."
        assert (first.name, first.arguments, second.name, second.arguments) == (
            "f",
            '{"q": "你好"}',
            "g",
            "{}",
        )
        assert whole.usage is not None and whole.usage.output_tokens_details.reasoning_tokens > 0
        assert whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
        stream = await rig.openai.responses.create(**ASKED, tools=TOOLS, max_output_tokens=200, stream=True)
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [without_ids(item) for item in done] == [without_ids(item) for item in whole.output]
    assert [without_ids(item) for item in events[-1].response.output] == [without_ids(item) for item in done]
    for kind, expected in (
        ("response.output_text.delta", "Let me see."),
        ("response.reasoning_text.delta", reasoning.content[0].text),
        ("response.function_call_arguments.delta", first.arguments + second.arguments),
    ):
        assert "".join(event.delta for event in events if event.type == kind) == expected


async def test_text_after_a_call_is_an_item_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path, f"{F}\nand {G}", reasoning_parser="none") as rig:
        rig.drafter.model = rig.target.model  # so a chunk has many tokens
        asked = {**ASKED, "tools": TOOLS, "max_output_tokens": 200}
        whole = await rig.openai.responses.create(**asked)
        stream = await rig.openai.responses.create(**asked, stream=True)
        streamed = [event async for event in stream][-1].response
    for found in (whole, streamed):
        first, text, second = found.output
        assert (first.arguments, second.arguments) == ('{"q": "你好"}', "{}")
        assert text.content[0].text.strip() == "and"
        assert {item.status for item in found.output} == {"completed"}


def without_ids(item: Any) -> dict[str, Any]:
    return {key: value for key, value in item.model_dump().items() if key not in ("id", "call_id")}


async def test_the_end_of_a_long_item_is_made_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = list[tuple[str, bool]](), Output._end_events

    def recorded(output: Output, item: OutputItem) -> Iterator[Event]:
        made.append((item.type, threading.current_thread() is threading.main_thread()))
        return make(output, item)

    monkeypatch.setattr(Output, "_end_events", recorded)
    included: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 20}
    async with serving(tmp_path, "fox " * 300 + F + G + "so", context_length=4096) as rig:
        asked = {**ASKED, "tools": TOOLS, "max_output_tokens": 1900, **included}
        whole = await rig.openai.responses.create(**asked)
        assert made == [], "nothing streams"
        events = [event async for event in await rig.openai.responses.create(**asked, stream=True)]
    assert [item.type for item in whole.output] == ["message", "function_call", "function_call", "message"]
    assert made[:3] == [("message", False), ("function_call", True), ("function_call", True)]
    assert [without_ids(item) for item in events[-1].response.output] == list(map(without_ids, whole.output))


async def test_a_tool_loop_sends_items_back(tmp_path: Path) -> None:
    async with serving(tmp_path, THINKING) as rig:
        first = await rig.openai.responses.create(**ASKED, tools=TOOLS, max_output_tokens=200)
        calls = [item for item in first.output if item.type == "function_call"]
        answers = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "18 C"} for call in calls
        ]
        history: list[Any] = [{"role": "user", "content": "the fox"}, *first.output, *answers]
        asked = {**ASKED, "input": history}
        second = await rig.openai.responses.create(**asked, tools=TOOLS, max_output_tokens=200)
        assert second.status == "completed" and len(second.output) == 4


async def test_a_form_reaches_the_target(tmp_path: Path) -> None:
    class Answer(BaseModel):
        age: int

    async with serving(tmp_path, '{"age": 7}', reasoning_parser="none") as rig:
        parsed = await rig.openai.responses.parse(**ASKED, text_format=Answer)
        assert parsed.output_parsed == Answer(age=7)
        (grammar,) = json.loads(rig.target.openings[-1].grammar)["grammars"]
        assert grammar["json_schema"]["properties"] == {"age": {"title": "Age", "type": "integer"}}


async def test_a_response_that_fails_in_mid_stream_ends_with_its_cause(tmp_path: Path) -> None:
    async with serving(tmp_path, "the quick fox", reasoning_parser="none", replica_wait_s=0.1) as rig:
        dies_at(rig.target, 3)
        stream = await rig.openai.responses.create(**ASKED, stream=True)
        events = [event async for event in stream]
    failed, sent = events[-1].response, [e.delta for e in events if e.type == "response.output_text.delta"]
    assert [event.type for event in events[-2:]] == ["response.output_item.done", "response.failed"]
    assert (failed.status, failed.error.code) == ("failed", "not_ready")
    assert "no target replica" in failed.error.message
    assert sent and failed.output_text == "".join(sent) and failed.output[0].status == "incomplete"


async def test_a_tool_that_only_models_of_openai_have_is_left_out(tmp_path: Path) -> None:
    built_in: list[Any] = [{"type": "web_search", "external_web_access": False}, {"type": "local_shell"}]
    async with serving(tmp_path, F, reasoning_parser="none") as rig:
        found = await rig.openai.responses.create(**ASKED, tools=[*built_in, *TOOLS])
        assert [item.type for item in found.output] == ["function_call"]
        warnings = (found.model_extra or {})["warnings"]
        assert [each.split(" is ")[0] for each in warnings] == [
            "tools[0] has no effect: web_search",
            "tools[1] has no effect: local_shell",
        ]
        alone = await rig.openai.responses.create(**ASKED, tools=built_in)
        assert alone.status == "completed" and alone.output_text
        for fields, param in (
            ({"tools": [*built_in, {**TOOLS[0], "name": "a b"}]}, "tools[2].name"),
            ({"tools": [*built_in, *TOOLS], "tool_choice": {"type": "web_search"}}, "tool_choice"),
            ({"tools": built_in, "tool_choice": "required"}, "tool_choice"),
        ):
            refused = await rig.post("/v1/responses", {"model": MODEL, "input": "the fox", **fields})
            assert refused.status_code == 400 and error_of(refused)["param"] == param, refused.text


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": 5}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "text": "x"}]}]}, "input[0].content"),
    ({"input": [{"role": "cat", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"role": "user", "content": "x"}, CALL]}, "input[1].arguments"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name"),
    ({"seed": 2**64}, "seed"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "namespace", "name": "x", "tools": []}]}, "tools[0].type"),
    ({"tools": [{"type": ["web_search"], "name": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no"}}}}, "text.format"),
    ({"speculation": {"mode": "brave"}}, "speculation.mode"),
]


async def test_what_is_not_served_is_refused_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path, "yes") as rig:
        for fields, param in REFUSED:
            refused = await rig.post("/v1/responses", {"model": MODEL, "input": "the fox", **fields})
            assert refused.status_code == 400 and error_of(refused)["param"] == param, refused.text
        assert not rig.target.openings
