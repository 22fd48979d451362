"""Log-probabilities: of tokens that are parts of a character, that look alike, and of a response's text."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.fakes import HashModel
from tests.contract.http_reports.report_rig import CHAT, COMPLETIONS, USER
from tests.contract.http_rig import MODEL, HttpRig, error_of
from tests.contract.test_http_responses import TOOLS as FLAT_TOOLS
from tests.contract.test_http_tools import EXACT, F, G, Writer, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

EMOJI = "a \N{WOMAN}\u200d\N{GIRL} \u4f60"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving(tmp_path_factory.mktemp("model"), EMOJI) as rig:
        yield rig


async def entries(rig: HttpRig, **fields: Any) -> list[dict[str, Any]]:
    asked = {"model": MODEL, "messages": [USER], "logprobs": True, "max_tokens": 60, **fields}
    whole = (await rig.post(CHAT, asked)).json()["choices"][0]["logprobs"]["content"]
    chunks = await rig.stream(CHAT, **asked)
    streamed = [each for c in chunks for each in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == whole
    return list(whole)


async def test_each_token_has_its_own_bytes(rig: HttpRig) -> None:
    """ollama#13497, vllm#9463, vllm#34875, standardcompletions/rfcs#2: U+FFFD or nothing in their place."""
    found = await entries(rig)
    *own, end = found
    assert all(each["bytes"] for each in own)
    assert bytes(byte for each in own for byte in each["bytes"]).decode() == EMOJI
    parts = [each for each in own if each["token"].startswith("bytes:")]
    assert len(parts) > 4 and parts[0]["token"] == "bytes:" + "".join(
        rf"\x{b:02x}" for b in parts[0]["bytes"]
    )
    assert all(bytes(each["bytes"]).decode() == each["token"] for each in own if each not in parts)
    assert (end["token"], end["bytes"]) == ("<eos>", None), "a special token has a name and no bytes"


async def test_a_character_that_is_cut_off_keeps_its_bytes(rig: HttpRig) -> None:
    whole = await entries(rig)
    for most in range(1, len(whole)):
        cut = await entries(rig, max_tokens=most)
        assert [each["bytes"] for each in cut] == [each["bytes"] for each in whole[:most]]


async def test_alternatives_with_equal_text_stay_apart(rig: HttpRig) -> None:
    found = await entries(rig, top_logprobs=20)
    for each in found:
        names = [(top["token"], str(top["bytes"])) for top in each["top_logprobs"]]
        assert len(set(names)) == len(names) == 20
        assert all(
            top["bytes"] or top["token"].startswith(("<", "token_id:")) for top in each["top_logprobs"]
        )


async def test_completions_and_chats_agree(rig: HttpRig) -> None:
    chat = await entries(rig, top_logprobs=3)
    prompt = (await rig.post("/tokenize", {"messages": [USER]})).json()["tokens"]
    asked = {"model": MODEL, "prompt": prompt, "logprobs": 3, "max_tokens": 60}
    (choice,) = (await rig.post(COMPLETIONS, asked)).json()["choices"]
    found = choice["logprobs"]
    assert found["tokens"] == [each["token"] for each in chat]
    assert found["token_logprobs"] == [each["logprob"] for each in chat]
    assert [sorted(top.values()) for top in found["top_logprobs"]] == [
        sorted(top["logprob"] for top in each["top_logprobs"]) for each in chat
    ]
    assert all(len(top) == 3 for top in found["top_logprobs"])
    offsets = found["text_offset"]
    assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= len(choice["text"])
    for name, start in zip(found["tokens"], offsets, strict=True):
        assert name.startswith(("bytes:", "<")) or choice["text"][start:].startswith(name)


async def test_a_prompt_is_returned_with_the_same_names(rig: HttpRig) -> None:
    ids = (await rig.post("/tokenize", {"prompt": EMOJI})).json()["tokens"]
    rig.target.model = HashModel()
    asked = {"model": MODEL, "prompt": ids, "logprobs": 20, "echo": True, "max_tokens": 0}
    found = (await rig.post(COMPLETIONS, asked)).json()["choices"][0]["logprobs"]
    assert [name for name in found["tokens"] if "\ufffd" in name or not name] == []
    listed = list(zip(found["tokens"], found["top_logprobs"], strict=True))[1:]
    assert all(name in top and len(top) in (20, 21) for name, top in listed)


INCLUDED: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


async def responses(rig: HttpRig, **fields: Any) -> tuple[Any, list[Any]]:
    """Return a response of the `openai` package, and the events of the same response."""
    asked: dict[str, Any] = {"model": MODEL, "input": "the fox", "extra_body": EXACT, **INCLUDED, **fields}
    whole = await rig.openai.responses.create(**asked)
    async with rig.openai.responses.stream(**asked) as stream:
        return whole, [event async for event in stream]


async def writes(rig: HttpRig, text: str) -> None:
    """Let the model write this from now on."""
    ids = (await rig.post("/tokenize", {"prompt": text})).json()["tokens"]
    rig.target.model = Writer(script=tuple(ids))


def plain(listed: Any) -> list[Any]:
    return [each.model_dump() for each in listed]


async def test_a_response_has_those_of_its_text_alone(rig: HttpRig) -> None:
    thought = f"<think>\nhm {G}</think>\n\n"
    for text, shown in (
        (EMOJI, EMOJI),
        (f"{thought}{EMOJI}\n{F}\n{G}", EMOJI),
        (f"{thought}{F}", ""),
        (f"Well, {F}so ", "Well,so "),
    ):
        await writes(rig, text)
        whole, events = await responses(rig, tools=FLAT_TOOLS)
        parts = [item.content[0] for item in whole.output if item.type == "message"]
        found = [each for part in parts for each in part.logprobs]
        joined = b"".join(bytes(each.bytes) for each in found).decode()
        assert "".join(part.text for part in parts) == joined == shown
        assert all(len(each.top_logprobs) == 2 and each.logprob < 0 for each in found)
        for kind in ("response.output_text.delta", "response.output_text.done"):
            sent = [each for event in events if event.type == kind for each in event.logprobs]
            assert plain(sent) == plain(found)
        last = events[-1].response
        assert [plain(each.content[0].logprobs) for each in last.output if each.type == "message"] == [
            plain(part.logprobs) for part in parts
        ]
        assert (whole.top_logprobs, last.top_logprobs) == (2, 2)


async def test_a_response_and_a_chat_agree(rig: HttpRig) -> None:
    await writes(rig, EMOJI)
    *chat, _ = await entries(rig, top_logprobs=2, messages=[{"role": "user", "content": "the fox"}])
    whole, _ = await responses(rig)
    found = whole.output[0].content[0].logprobs
    assert [(each.token, each.bytes, each.logprob) for each in found] == [
        (each["token"], each["bytes"], each["logprob"]) for each in chat
    ]
    for most in (1, 3, 5):
        cut, _ = await responses(rig, max_output_tokens=most)
        of_cut = [item.content[0].logprobs for item in cut.output]
        assert [each.bytes for listed in of_cut for each in listed] == [each["bytes"] for each in chat[:most]]


async def test_only_what_is_included_is_returned(rig: HttpRig) -> None:
    whole, _ = await responses(rig, include=["reasoning.encrypted_content"])
    assert whole.output[0].content[0].logprobs == [] and "top_logprobs has no effect" in str(whole.warnings)
    alone, _ = await responses(rig, top_logprobs=None)
    assert all(each.top_logprobs == [] for each in alone.output[0].content[0].logprobs)
    refused = await rig.post("/v1/responses", {"model": MODEL, "input": "x", **INCLUDED, "top_logprobs": 21})
    assert refused.status_code == 400 and error_of(refused)["param"] == "top_logprobs"
