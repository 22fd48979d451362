"""Helpers of the `openai` package in a loop of tools: typed calls, typed answers, events of streams."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, ConfigDict

from tests.contract.http_reports.report_rig import USER
from tests.contract.http_rig import MODEL, HttpRig
from tests.contract.test_http_tools import EXACT, Writer, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '<think>\nhm</think>\n\n<tool_call>\n{"name": "Add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
ANSWER = '<think>\nhm</think>\n\n{"total": 5}'


class Add(BaseModel):
    """Add two numbers."""

    model_config = ConfigDict(extra="forbid")
    a: int
    b: int


class Total(BaseModel):
    """A typed answer."""

    model_config = ConfigDict(extra="forbid")
    total: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving(tmp_path_factory.mktemp("model"), CALL) as rig:
        yield rig


async def writes(rig: HttpRig, text: str) -> None:
    """Let the model write this from now on."""
    ids = (await rig.post("/tokenize", {"prompt": text})).json()["tokens"]
    rig.target.model = Writer(script=tuple(ids))


def results(calls: Any) -> list[dict[str, Any]]:
    """Run the called tools; their arguments are parsed already."""
    return [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": str(call.function.parsed_arguments.a + call.function.parsed_arguments.b),
        }
        for call in calls
    ]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_loop_over_chats_ends_with_a_typed_answer(rig: HttpRig, streams: bool) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "tools": [openai.pydantic_function_tool(Add)],
        "response_format": Total,
        "extra_body": EXACT,
    }

    async def turn(messages: list[Any]) -> Any:
        if not streams:
            return (await rig.openai.chat.completions.parse(**asked, messages=messages)).choices[0].message
        async with rig.openai.chat.completions.stream(**asked, messages=messages) as stream:
            return (await stream.get_final_completion()).choices[0].message

    await writes(rig, CALL)
    messages: list[Any] = [USER]
    called = await turn(messages)
    assert [call.function.parsed_arguments for call in called.tool_calls] == [Add(a=2, b=3)]
    messages += [called, *results(called.tool_calls)]
    await writes(rig, ANSWER)
    assert (await turn(messages)).parsed == Total(total=5)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_loop_over_responses_ends_with_a_typed_answer(rig: HttpRig, streams: bool) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "tools": [
            {
                "type": "function",
                "name": "Add",
                "strict": True,
                "parameters": Add.model_json_schema(),
            }
        ],
        "text_format": Total,
        "extra_body": EXACT,
    }

    async def turn(items: list[Any]) -> Any:
        if not streams:
            return await rig.openai.responses.parse(**asked, input=items)
        async with rig.openai.responses.stream(**asked, input=items) as stream:
            return await stream.get_final_response()

    await writes(rig, CALL)
    items: list[Any] = [USER]
    called = await turn(items)
    (call,) = [item for item in called.output if item.type == "function_call"]
    items += [*called.output, {"type": "function_call_output", "call_id": call.call_id, "output": "5"}]
    await writes(rig, ANSWER)
    found = await turn(items)
    assert found.output_parsed == Total(total=5) and found.output[0].type == "reasoning"


async def test_events_of_the_stream_helper_join_to_the_message(rig: HttpRig) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": [USER], "extra_body": EXACT, "logprobs": True}
    tools = [openai.pydantic_function_tool(Add)]
    await writes(rig, CALL)
    async with rig.openai.chat.completions.stream(**asked, tools=tools) as stream:
        events = [event async for event in stream]
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert done.parsed_arguments == Add(a=2, b=3) and done.name == "Add"
    assert "".join(event.arguments_delta for event in deltas) == done.arguments
    await writes(rig, ANSWER)
    async with rig.openai.chat.completions.stream(**asked, response_format=Total) as stream:
        events = [event async for event in stream]
    counted = Counter(event.type for event in events)
    assert counted["content.done"] == counted["logprobs.content.done"] == 1
    (content,) = [event for event in events if event.type == "content.done"]
    assert content.parsed == Total(total=5)
    assert "".join(event.delta for event in events if event.type == "content.delta") == content.content


async def test_other_ways_of_the_client_get_the_same(rig: HttpRig) -> None:
    """A client without asyncio, a raw response, and a response that is read as it comes."""
    asked: dict[str, Any] = {"model": MODEL, "messages": [USER], "extra_body": EXACT}
    await writes(rig, ANSWER)
    chat = rig.openai.chat.completions
    raw = await chat.with_raw_response.create(**asked)
    async with chat.with_streaming_response.create(**asked, stream=True) as read:
        lines = [line async for line in read.iter_lines()]
    assert lines[-2] == "data: [DONE]" or lines[-1] == "data: [DONE]"

    def blocking() -> str | None:
        with (
            openai.OpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as client,
            client.chat.completions.stream(**asked) as stream,
        ):
            return stream.get_final_completion().choices[0].message.content

    assert raw.parse().choices[0].message.content == await asyncio.to_thread(blocking) == '{"total": 5}'
