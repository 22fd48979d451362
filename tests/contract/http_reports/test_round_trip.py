"""Conversations that go on with what servers, libraries and frameworks hand back."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.contract.http_reports.report_rig import CHAT, RESPONSES, USER, Report, answer
from tests.contract.http_rig import MODEL, HttpRig
from tests.contract.test_http_responses import TOOLS as FLAT_TOOLS
from tests.contract.test_http_tools import EXACT, TOOLS, Writer, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}"
    "{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}</tool_call>{% endfor %};"
    "{% endfor %}{# <think></think> #}"
)
"""Template that needs the arguments as an object, as those of Qwen3-Coder and GLM do."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    folder = tmp_path_factory.mktemp("model")
    file = folder / "own.jinja"
    file.write_text(TEMPLATE, encoding="utf-8")
    async with serving(folder, "ok", chat_template=file) as rig:
        yield rig


async def writes(rig: HttpRig, text: str) -> None:
    """Let the model write this from now on."""
    ids = (await rig.post("/tokenize", {"prompt": text})).json()["tokens"]
    rig.target.model = Writer(script=tuple(ids))


def called(arguments: Any, call: dict[str, Any] | None = None, **message: Any) -> dict[str, Any]:
    """Return a conversation with a call and its answer; `call` and `message` are further fields of them."""
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}, **(call or {})}
    ]
    said = {"role": "assistant", "content": None, "tool_calls": calls, **message}
    return {"messages": [USER, said, {"role": "tool", "tool_call_id": "c1", "content": "5"}, USER]}


def items(*given: dict[str, Any]) -> dict[str, Any]:
    return {"input": [USER, *given, USER]}


def said(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", **fields}, USER]}


CUT = '{"city": "'
OUTPUT = {"type": "function_call_output", "call_id": "k", "output": "cut"}
NOTHING = {"role": "tool", "tool_call_id": "c1", "content": None}
PARSED = {"function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}
TEXT = {"type": "output_text", "text": "No.", "annotations": []}


def call_item(arguments: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "k", "name": "f", "arguments": arguments, **more}


REPORTS = [
    Report("vllm#43995 vllm#48922", "a cut call ends the conversation", CHAT, called(CUT)),
    Report("local-inference-lab/vllm#684", "the same in Responses", RESPONSES, items(call_item(CUT), OUTPUT)),
    Report(
        "DSpark-2x-DGX-Spark#55 justrach/codegraff#752", "no later turn works", CHAT, called('{"a": "b", "c')
    ),
    Report("sglang#28035", "a list as arguments fails in the template", CHAT, called('["Beijing"]')),
    Report("sglang#28035", "a text as arguments fails in the template", CHAT, called('"Beijing"')),
    Report("QwenLM/Qwen3#1894", "arguments as text fail in the template", CHAT, called('{"city": "Paris"}')),
    Report("mudler/vllm.cpp#526", "empty arguments are no object", CHAT, called("")),
    Report("vortico/flama#258", "arguments that are an object are refused", CHAT, called({"city": "Paris"})),
    Report("", "arguments that are missing", CHAT, called("{}", {"function": {"name": "f"}})),
    Report("", "arguments with half of a pair", CHAT, called(r'{"\ud800": 1}')),
    Report(
        "mistral-common#165 OpenAI-DotNet#278 one-api#1319",
        "the index of a call",
        CHAT,
        called("{}", {"index": 0}),
    ),
    Report("mistralai/mistral-vibe#114", "an index of null", CHAT, called("{}", {"index": None})),
    Report("litellm#24042", "fields of OpenAI's stream helper", CHAT, called("{}", PARSED, parsed=None)),
    Report("rig#1362", "an empty list as content", CHAT, called("{}", content=[])),
    Report("vllm#21089", "an empty content", CHAT, called("{}", content="")),
    Report(
        "copilot-sdk#2061",
        "empty fields of a message",
        CHAT,
        called("{}", refusal=None, audio=None, annotations=[]),
    ),
    Report("mistral-common#324", "no content, and no calls", CHAT, said(content=None)),
    Report("", "a message without content", CHAT, said(reasoning="hm")),
    Report(
        "Wei-Shaw/sub2api#225",
        "thoughts among the parts of an answer",
        CHAT,
        said(
            content=[
                {"type": "thinking", "thinking": "hm", "cache_control": {}},
                {"type": "text", "text": "a"},
            ]
        ),
    ),
    Report("", "a refusal as text", CHAT, said(content=None, refusal="No.")),
    Report("", "a refusal as a part", CHAT, said(content=[{"type": "refusal", "refusal": "No."}])),
    Report(
        "routatic/proxy#42",
        "a mark for a cache",
        CHAT,
        said(content="a", cache_control={"type": "ephemeral"}),
    ),
    Report(
        "",
        "reasoning of other providers",
        CHAT,
        said(content="a", reasoning_details=[{"a": 1}], thinking_blocks=[]),
    ),
    Report(
        "vllm#54224",
        "an id of null",
        RESPONSES,
        items({"type": "message", "role": "assistant", "id": None, "content": [TEXT]}),
    ),
    Report(
        "vllm#33089",
        "fields of items",
        RESPONSES,
        items(call_item("{}", namespace=None, caller=None, index=0), OUTPUT),
    ),
    Report(
        "", "an item without a type", RESPONSES, items({"role": "assistant", "type": None, "content": "a"})
    ),
    Report(
        "",
        "a refusal in Responses",
        RESPONSES,
        items({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}),
    ),
    Report(
        "",
        "parts of both APIs",
        RESPONSES,
        items({"role": "user", "content": [{"type": "text", "text": "a"}]}),
    ),
    Report(
        "",
        "reasoning with its forms",
        RESPONSES,
        items(
            {"type": "reasoning", "id": "a", "summary": [], "content": None},
            {"role": "assistant", "content": "a"},
        ),
    ),
    Report(
        "vllm#55974",
        "an item that needs a state gets 500",
        RESPONSES,
        items({"type": "item_reference", "id": "a"}),
        "input[1]",
        "has type item_reference",
    ),
    Report(
        "",
        "an image is dropped in silence",
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content",
        "only text",
    ),
    Report("", "texts as parts", CHAT, {"messages": [{"role": "user", "content": ["a", {"text": "b"}]}]}),
    Report("", "a type of null", CHAT, {"messages": [{**USER, "content": [{"type": None, "text": "b"}]}]}),
    Report("", "a result of nothing", CHAT, {"messages": [*called("{}")["messages"][:2], {**NOTHING}, USER]}),
    Report("", "reasoning in another form", CHAT, said(content="a", reasoning=["hm"], reasoning_content={})),
    Report("", "nothing in Responses", RESPONSES, items(call_item("{}"), {**OUTPUT, "output": None})),
    Report("", "an answer of nothing", RESPONSES, items({"role": "assistant", "content": None})),
    Report(
        "",
        "reasoning as text",
        RESPONSES,
        items({"type": "reasoning", "content": [{"type": "text", "text": "hm"}]}, call_item("{}"), OUTPUT),
    ),
    Report(
        "",
        "audio is dropped in silence",
        CHAT,
        said(content=None, audio={"id": "a"}),
        "messages[1]",
        "has audio, which is not supported",
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=str)
async def test_what_was_handed_back_is_taken(rig: HttpRig, report: Report) -> None:
    await writes(rig, "ok")
    await answer(rig, report)


async def test_a_template_sees_a_cut_call_as_far_as_it_goes(rig: HttpRig) -> None:
    for arguments, shown in ((CUT + "Os", "city=Os"), ("[1]", "arguments=[1]"), ("{bad", "arguments={bad")):
        asked = await rig.post("/tokenize", called(arguments))
        text = (await rig.post("/detokenize", {"tokens": asked.json()["tokens"]})).json()["prompt"]
        assert f"<tool_call>{shown}</tool_call>;tool:5;" in text


CALLS = '<think>\nhm</think>\n\nLet me see.\n<tool_call>{"name": "f", "arguments": {"q": "你好"}}</tool_call>'
TEXTS = [CALLS, CALLS + '<tool_call>{"name": "g"}</tool_call>', CALLS[:-20], "<think>\nhm", "plain"]
"""Answers of the model; one is cut within the arguments, one within its reasoning."""
STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]


async def chat_forms(rig: HttpRig, is_whole: bool) -> list[Any]:
    """Return the model's message as the package returns it: whole, joined from a stream, and parsed."""
    asked: dict[str, Any] = {"model": MODEL, "messages": [USER], "tools": STRICT, "extra_body": EXACT}
    chat = rig.openai.chat.completions
    found = [(await chat.create(**asked)).choices[0].message]
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    async for chunk in await chat.create(**asked, stream=True):
        state.handle_chunk(chunk)
    found.append(state.current_completion_snapshot.choices[0].message)
    if is_whole:
        found.append((await chat.parse(**asked)).choices[0].message)
        async with chat.stream(**asked) as stream:
            found.append((await stream.get_final_completion()).choices[0].message)
    return [*found, *(message.model_dump() for message in found)]


@pytest.mark.parametrize("text", TEXTS)
async def test_a_chat_goes_on_with_its_own_messages(rig: HttpRig, text: str) -> None:
    await writes(rig, text)
    for message in await chat_forms(rig, is_whole=text != TEXTS[2]):
        plain = message if isinstance(message, dict) else message.model_dump()
        calls = plain.get("tool_calls") or ()
        assert len(calls) == text.count("<tool_call>")
        answers = [{"role": "tool", "tool_call_id": call["id"], "content": "5"} for call in calls]
        history: list[Any] = [USER, message, *answers, USER]
        again = await rig.openai.chat.completions.create(
            model=MODEL, messages=history, tools=TOOLS, max_tokens=2, extra_body=EXACT
        )
        assert again.choices


@pytest.mark.parametrize("text", TEXTS)
async def test_responses_go_on_with_their_own_items(rig: HttpRig, text: str) -> None:
    await writes(rig, text)
    asked: dict[str, Any] = {"model": MODEL, "input": [USER], "tools": FLAT_TOOLS, "extra_body": EXACT}
    responses = rig.openai.responses
    whole = await responses.create(**asked, previous_response_id=None, background=False)
    parsed = await responses.parse(**asked)
    async with responses.stream(**asked) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_response()
    for found in (whole, parsed, streamed):
        dumped = [item.model_dump() for item in found.output]
        for output in (found.output, dumped, [item.model_dump(exclude_none=True) for item in found.output]):
            answers = [
                {
                    "type": "function_call_output",
                    "call_id": item["call_id"],
                    "output": [{"type": "input_text", "text": "5"}],
                }
                for item in dumped
                if item["type"] == "function_call"
            ]
            again = await responses.create(
                **{**asked, "input": [USER, *output, *answers, USER]}, max_output_tokens=2
            )
            assert again.status in ("completed", "incomplete")


async def test_a_call_that_was_cut_by_the_server_is_answered(rig: HttpRig) -> None:
    await writes(rig, CALLS)
    asked = {"model": MODEL, "messages": [USER], "tools": TOOLS, **EXACT}
    num_tokens = (await rig.post(CHAT, asked)).json()["usage"]["completion_tokens"]
    seen = set()
    for most in range(1, num_tokens, 3):
        message = (await rig.post(CHAT, {**asked, "max_tokens": most})).json()["choices"][0]["message"]
        calls = message.get("tool_calls") or ()
        seen |= {call["function"]["arguments"] for call in calls}
        answers = [{"role": "tool", "tool_call_id": call["id"], "content": "cut"} for call in calls]
        again = await rig.post(CHAT, {**asked, "messages": [USER, message, *answers, USER], "max_tokens": 1})
        assert again.status_code == 200, again.text
    assert len(seen) > 3 and any(not _is_json(arguments) for arguments in seen)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
