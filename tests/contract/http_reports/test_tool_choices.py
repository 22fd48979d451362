"""Choices of tools in both APIs, and the older fields of chats: `functions`, `function_call`."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.contract.http_reports.message_rig import PLAIN, chat, flat, respond, tool
from tests.contract.http_reports.report_rig import CHAT, RESPONSES, USER, Report, answer
from tests.contract.http_reports.test_tools_with_formats import CITY, OTHER, bias_of
from tests.contract.http_rig import MODEL, HttpRig
from tests.contract.test_http_tools import EXACT, TOOLS, F, G, serving

ONE = {"parallel_tool_calls": False}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """Return a choice of a chat."""
    named = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


def flat_allowed(mode: str, *names: str) -> dict[str, Any]:
    """Return a choice of `/v1/responses`."""
    return {
        "type": "allowed_tools",
        "mode": mode,
        "tools": [{"type": "function", "name": name} for name in names],
    }


@pytest.mark.asyncio(loop_scope="package")
@pytest.mark.parametrize("name", ["w", "other"])
@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_an_allowed_tool_is_called(demo: httpx2.AsyncClient, mode: str, name: str) -> None:
    tools = [tool(CITY), OTHER]
    asked = {"model": "demo", "temperature": 0, **ONE, **PLAIN}
    bias = await bias_of(demo, begins_with_call=True)
    chats = {"messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 120, "logit_bias": bias}
    for found in await chat(demo, **asked, **chats, tools=tools, tool_choice=allowed(mode, name)):
        # NOTE: where the marker of a call is no token, a model may begin a call of another tool: it is text.
        assert {called for called, _ in found.calls} == {name} or (mode == "auto" and not found.calls)
    items = {"input": "Weather?", "max_output_tokens": 120, "tools": list(map(flat, tools))}
    for found in await respond(demo, **asked, **items, tool_choice=flat_allowed(mode, name)):
        assert {called for called, _ in found.calls} <= {name}
        assert found.calls or mode == "auto"


@pytest.mark.asyncio(loop_scope="package")
@pytest.mark.parametrize("demo", ["tokens"], indirect=True)
async def test_a_model_that_begins_a_call_gets_an_allowed_tool(demo: httpx2.AsyncClient) -> None:
    tools, bias = [tool(CITY), tool(CITY, "other")], await bias_of(demo, begins_with_call=True)
    asked = {"model": "demo", "temperature": 0, **ONE, **PLAIN, "max_tokens": 120, "logit_bias": bias}
    for name in ("w", "other"):
        messages = [{"role": "user", "content": "Weather?"}]
        choice = allowed("auto", name)
        for found in await chat(demo, **asked, messages=messages, tools=tools, tool_choice=choice):
            assert [called for called, _ in found.calls] == [name]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving(tmp_path_factory.mktemp("model"), f"Let me see.\n{F}\n{G}") as rig:
        yield rig


FLAT = list(map(flat, TOOLS))
FUNCTIONS: list[Any] = [each["function"] for each in TOOLS]
CALLED = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"q": 1}'}}
RESULT = {"role": "function", "name": "f", "content": "5"}
REPORTS = [
    Report("", "allowed tools", CHAT, {"tools": TOOLS, "tool_choice": allowed("auto", "f", "g")}),
    Report("", "the same in Responses", RESPONSES, {"tools": FLAT, "tool_choice": flat_allowed("auto", "f")}),
    Report(
        "",
        "an allowed tool that there is not",
        CHAT,
        {"tools": TOOLS, "tool_choice": allowed("auto", "f", "h")},
        "tool_choice",
        "names 'h', which is none of the tools",
    ),
    Report(
        "",
        "no allowed tool",
        RESPONSES,
        {"tools": FLAT, "tool_choice": flat_allowed("auto")},
        "tool_choice",
        '"allowed_tools", "mode": "auto"',
    ),
    Report(
        "",
        "a mode that there is not",
        CHAT,
        {"tools": TOOLS, "tool_choice": allowed("none", "f")},
        "tool_choice",
        '{"type": "allowed_tools", "allowed_tools": {"mode"',
    ),
    Report("", "functions", CHAT, {"functions": FUNCTIONS, "function_call": "auto"}),
    Report("", "functions that are not called", CHAT, {"functions": FUNCTIONS, "function_call": "none"}),
    Report(
        "livekit/agents#1276", "a call of a function in the history", CHAT, {"messages": [USER, CALLED, USER]}
    ),
    Report("", "a result of a function", CHAT, {"messages": [USER, CALLED, RESULT, USER]}),
    Report("", "a result without a call", CHAT, {"messages": [USER, {**RESULT, "content": None}, USER]}),
    Report("", "a call of nothing", CHAT, {"messages": [USER, {**CALLED, "function_call": {}}, USER]}),
    Report(
        "",
        "functions and tools",
        CHAT,
        {"functions": FUNCTIONS, "tools": TOOLS},
        "functions",
        "must not be set with tools",
    ),
    Report(
        "",
        "a function that there is not",
        CHAT,
        {"functions": FUNCTIONS, "function_call": {"name": "h"}},
        "function_call",
        "names 'h'",
    ),
    Report(
        "",
        "a function twice",
        CHAT,
        {"functions": FUNCTIONS * 2},
        "functions[2].name",
        "which an earlier tool has",
    ),
    Report(
        "",
        "a required function",
        CHAT,
        {"functions": FUNCTIONS, "function_call": "required"},
        "function_call",
        'must be "none", "auto"',
    ),
    Report("", "functions in Responses", RESPONSES, {"functions": FUNCTIONS}, "functions", "use tools in a"),
    Report(
        "", "log-probabilities in Responses", RESPONSES, {"logprobs": True}, "logprobs", "use include and"
    ),
    Report(
        "",
        "a call by a user",
        CHAT,
        {"messages": [{**CALLED, **USER}]},
        "messages[0]",
        "which only role assistant may",
    ),
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("report", REPORTS, ids=str)
async def test_a_choice_is_served_or_refused_by_name(rig: HttpRig, report: Report) -> None:
    await answer(rig, report)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_function_is_called_in_the_older_form_alone(rig: HttpRig) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": [USER], "functions": FUNCTIONS, "extra_body": EXACT}
    whole = (await rig.openai.chat.completions.create(**asked, max_tokens=200)).choices[0]
    message = whole.message
    assert message.function_call is not None and not message.tool_calls
    assert (whole.finish_reason, message.content) == ("function_call", "Let me see.")
    assert (message.function_call.name, message.function_call.arguments) == ("f", '{"q": "你好"}')
    stream = await rig.openai.chat.completions.create(**asked, max_tokens=200, stream=True)
    choices = [chunk.choices[0] async for chunk in stream]
    calls = [each.delta.function_call for each in choices if each.delta.function_call]
    assert [call.name for call in calls if call.name] == ["f"]
    assert "".join(call.arguments or "" for call in calls) == message.function_call.arguments
    assert choices[-1].finish_reason == "function_call"
    assert not [each for each in choices if each.delta.tool_calls]
    again = {**asked, "messages": [USER, message, RESULT, USER]}
    assert (await rig.openai.chat.completions.create(**again, max_tokens=2)).choices
    cut = (await rig.openai.chat.completions.create(**asked, max_tokens=30)).choices[0]
    assert cut.finish_reason == "length"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_named_function_is_called(rig: HttpRig) -> None:
    named = {"name": "g"}
    asked = {"model": MODEL, "messages": [USER], "max_tokens": 2}
    for fields in (
        {"functions": FUNCTIONS, "function_call": named},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": named}},
    ):
        response = await rig.post(CHAT, {**asked, **fields})
        assert response.status_code == 200, response.text
    older, newer = (opening.grammar for opening in rig.target.openings[-2:])
    assert older == newer and "g" in older


@pytest.mark.asyncio(loop_scope="module")
async def test_the_prompt_is_that_of_tools(rig: HttpRig) -> None:
    """A prefix that is cached stays the same, whichever tools are allowed and whichever names a call has."""
    call = {"id": "c", "type": "function", "function": CALLED["function_call"]}
    newer = [
        {**CALLED, "function_call": None, "tool_calls": [call]},
        {**RESULT, "role": "tool", "tool_call_id": "c"},
    ]
    bodies: list[dict[str, Any]] = [
        {"messages": [USER, *newer, USER], "tools": TOOLS},
        {"messages": [USER, *newer, USER], "tools": TOOLS, "tool_choice": allowed("auto", "g")},
        {"messages": [USER, CALLED, RESULT, USER], "functions": FUNCTIONS},
    ]
    for body in bodies:
        response = await rig.post(CHAT, {"model": MODEL, "max_tokens": 1, **body})
        assert response.status_code == 200, response.text
    prompts = [step.update.tokens for step in rig.target.asked if not step.update.keep]
    assert len(prompts[-1]) > 10 and prompts[-3] == prompts[-2] == prompts[-1]
