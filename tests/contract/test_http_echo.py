"""Prompts that are returned before their completions, with their log-probabilities."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.http_rig import MODEL, HttpRig, error_of, serving_http
from tests.contract.scripted import logprob

COMPLETIONS = "/v1/completions"
ECHO: dict[str, Any] = {"temperature": 0, "echo": True, "logprobs": 1}
LISTS = ("tokens", "token_logprobs", "top_logprobs")
LONG = [2 + (7 * at + at // 13) % 300 for at in range(600)]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving_http(tmp_path_factory.mktemp("model")) as rig:
        rig.target.model = rig.target.model.__class__(certain_share=0.3, context_length=700)
        yield rig


def check_prompt(logprobs: dict[str, Any], ids: list[int]) -> None:
    """The prompt's tokens come first, each with what the target answers for it; the first has nothing."""
    assert logprobs["token_logprobs"][: len(ids)] == [None, *(pytest.approx(logprob(i)) for i in ids[1:])]
    assert logprobs["top_logprobs"][0] is None
    for name, value, top in list(zip(*(logprobs[each] for each in LISTS), strict=True))[1 : len(ids)]:
        assert top[name] == value and len(top) in (1, 2), "the token itself is always listed"
    assert {len(each) for each in logprobs.values()} == {len(logprobs["tokens"])}


async def test_a_scored_prompt_needs_no_completion(rig: HttpRig) -> None:
    drafted = rig.drafter.num_opened
    for prompt in ([40, 41, 42, 43], [[40, 41, 42, 43]]):
        body = await rig.complete(prompt=prompt, max_tokens=0, **ECHO)
        (choice,) = body["choices"]
        check_prompt(choice["logprobs"], [40, 41, 42, 43])
        assert len(choice["logprobs"]["tokens"]) == 4 and choice["finish_reason"] == "length"
        assert choice["text"] == "".join(choice["logprobs"]["tokens"])
        assert body["usage"] | {"prompt_tokens_details": None, "completion_tokens_details": None} == {
            "completion_tokens_details": None,
            "prompt_tokens": 4,
            "completion_tokens": 0,
            "total_tokens": 4,
            "prompt_tokens_details": None,
        }
    opening = rig.target.openings[-1]
    assert (opening.num_logprobs, opening.prompt_length, opening.sampling.temperature) == (1, 4, 0)
    assert not rig.target.num_open and rig.drafter.num_opened == drafted


async def test_a_completion_follows_its_prompt(rig: HttpRig) -> None:
    plain = (await rig.complete(max_tokens=9, temperature=0, logprobs=1))["choices"][0]
    (choice,) = (await rig.complete(max_tokens=9, **ECHO))["choices"]
    assert choice["text"] == "the fox" + plain["text"]
    found, num_prompt = choice["logprobs"], len(choice["logprobs"]["tokens"]) - 9
    assert "".join(found["tokens"][:num_prompt]) == "the fox"
    offsets = [sum(map(len, found["tokens"][:at])) for at in range(num_prompt)]
    assert found["text_offset"] == offsets + [7 + at for at in plain["logprobs"]["text_offset"]]
    for name in LISTS:
        assert found[name][num_prompt:] == plain["logprobs"][name]


async def test_a_prompt_without_log_probabilities_is_only_text(rig: HttpRig) -> None:
    opened = rig.target.num_opened
    (choice,) = (await rig.complete(prompt=[40, 41], max_tokens=3, temperature=0, echo=True))["choices"]
    plain = (await rig.complete(prompt=[40, 41], max_tokens=3, temperature=0))["choices"][0]
    assert choice["logprobs"] is None and choice["text"].endswith(plain["text"])
    assert len(choice["text"]) > len(plain["text"]) and rig.target.num_opened == opened + 2


async def test_a_stream_begins_with_the_prompt(rig: HttpRig) -> None:
    asked = {**ECHO, "prompt": LONG[:40], "max_tokens": 12, "n": 2}
    whole = await rig.complete(**asked)
    chunks = await rig.stream(COMPLETIONS, **asked)
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"] and len(parts) > 1
        for name, values in choice["logprobs"].items():
            assert [value for part in parts for value in part["logprobs"][name]] == values


async def test_a_long_prompt_is_scored_in_parts_with_one_answer_per_token(tmp_path: Path) -> None:
    async with serving_http(tmp_path) as rig:
        ids = LONG[:511]
        for asked in ({"max_tokens": 0}, {"max_tokens": 1}):
            (choice,) = (await rig.complete(prompt=ids, **ECHO, **asked))["choices"]
            check_prompt(choice["logprobs"], ids)
        rows = [step.num_drafts for step in rig.target.verified]
        assert rows[:2] == [255, 255], "every token once, and no forward of the whole"
        whole = await rig.complete(prompt=[*ids, 40], **ECHO, max_tokens=0)
        assert len(whole["choices"][0]["logprobs"]["tokens"]) == 512, (
            "nothing follows: the context may be full"
        )
        response = await rig.post(
            COMPLETIONS, {"model": MODEL, "prompt": [*ids, 40], **ECHO, "max_tokens": 1}
        )
        assert error_of(response)["code"] == "context_length_exceeded"


async def test_more_log_probabilities_than_the_router_may_hold_are_refused_by_name(tmp_path: Path) -> None:
    async with serving_http(tmp_path, limits={"returned_values": 40}) as rig:
        await rig.complete(prompt=LONG[:20], **ECHO, max_tokens=0)
        response = await rig.post(COMPLETIONS, {"model": MODEL, "prompt": LONG[:21], **ECHO, "max_tokens": 0})
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, "logprobs", "invalid_value")
    assert "of up to 42 values, at most 40 are allowed (router.limits.returned_values)" in error["message"]


async def test_every_alternative_has_a_name_of_its_own(rig: HttpRig) -> None:
    asked = {**ECHO, "prompt": LONG[:40], "max_tokens": 40, "logprobs": 20}
    _, *tops = (await rig.complete(**asked))["choices"][0]["logprobs"]["top_logprobs"]
    for top in tops:
        most_likely = list(top.values())[:20]
        assert len(top) in (20, 21) and most_likely == sorted(most_likely, reverse=True)


async def test_the_service_tier_is_returned_and_the_priority_reaches_the_target(rig: HttpRig) -> None:
    for asked, tier, priority in (
        ({"priority": -3}, None, 3),
        ({"service_tier": "flex"}, "flex", -1),
        ({"service_tier": "auto"}, "default", 0),
        ({"service_tier": "priority"}, "priority", 1),
    ):
        body = await rig.complete(max_tokens=2, **asked)
        assert body.get("service_tier") == tier and rig.target.openings[-1].priority == priority
    completion = await rig.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=2, service_tier="priority"
    )
    assert completion.service_tier == "priority" and rig.target.openings[-1].priority == 1
