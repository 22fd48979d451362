"""A target on vLLM, against a stand-in for `AsyncLLM`: scores, rollback, extensions, the cache."""

from typing import Any

import numpy as np
import pytest

from fly.errors import InternalError, InvalidRequest
from fly.messages import Open, VerifyStep
from fly.request import SamplingParams
from fly.sequence import SequenceUpdate, StaleState, TokenSequence
from services.target.vllm import VllmTarget
from tests.unit.engine.vllm.vllm_client import PROMPT, greedy, opened
from tests.unit.engine.vllm.vllm_stand_in import BLOCK, StandIn, hash_logprobs, stand_in_engine


def entropy(tokens: list[int]) -> float:
    p = np.sort(np.exp(hash_logprobs(tokens).astype(np.float64)))[-3:]
    return float(-(p * np.log(p)).sum())


async def test_every_position_of_a_draft_is_scored() -> None:
    expected = greedy(PROMPT, 6)
    async with opened(stand_in_engine(StandIn()), num_logprobs=2) as client:
        answer = await client.verify(*expected[:5])
    assert list(answer.choices) == expected
    assert answer.entropies == pytest.approx([entropy(PROMPT + expected[:n]) for n in range(6)], abs=1e-5)
    assert [round(p.choice, 4) for p in answer.logprobs] == [
        round(float(hash_logprobs(PROMPT + expected[:n]).max()), 4) for n in range(6)
    ]
    assert answer.logprobs[-1].draft is None and len(answer.logprobs[0].top) == 2
    assert answer.times.queue_ns == 500_000_000 and answer.times.forward_ns == 1_000_000_000


async def test_gaps_are_differences_of_log_probabilities_and_no_extension_has_them() -> None:
    drafts = [*greedy(PROMPT, 2), 60, 61]
    async with opened(stand_in_engine(StandIn()), with_gaps=True) as client:
        answer = await client.verify(*drafts)
        extension = await client.extend(3)
    prefixes = [hash_logprobs(PROMPT + drafts[:n]) for n in range(4)]
    expected = [float(each.max() - each[draft]) for each, draft in zip(prefixes, drafts, strict=True)]
    assert answer.gaps == pytest.approx(expected, abs=1e-5) and answer.gaps[:2] == (0.0, 0.0)
    assert extension.gaps == () and answer.logprobs == ()


async def test_a_prompt_is_scored_as_the_drafts_of_its_first_token() -> None:
    prompt = [3 + n % 50 for n in range(60)]
    engine = stand_in_engine(StandIn())
    for _ in range(2):  # the second time, the cache holds it
        async with opened(engine, prompt[:1], num_logprobs=1) as client:
            found: list[float | None] = []
            for start in range(1, 60, 20):
                answer = await client.verify(*prompt[start : start + 20])
                found += [position.draft for position in answer.logprobs[:-1]]
                client.sequence.extend(prompt[start : start + 20])
        expected = [float(hash_logprobs(prompt[:at])[prompt[at]]) for at in range(1, 60)]
        assert found == pytest.approx(expected, abs=1e-5)


async def test_rollback_and_growth_leave_no_trace() -> None:
    expected = greedy(PROMPT, 8)
    async with opened(stand_in_engine(StandIn())) as client:
        await client.verify(60, 61, 62)
        client.sequence.extend(expected[:3])
        await client.verify(60, *expected[4:6])
        answer = await client.verify(*expected[3:7])
    assert list(answer.choices) == expected[3:8]


async def test_extending_equals_verifying_and_ends_at_a_stop_token() -> None:
    expected = greedy(PROMPT, 12)
    stop = next(token for token in expected if expected.index(token) >= 4)
    end = expected.index(stop) + 1
    engine = stand_in_engine(StandIn())
    async with opened(engine, sampling=SamplingParams(stop_token_ids=(stop,))) as client:
        answer = await client.extend(12)
        assert list(answer.choices) == expected[:end]
    async with opened(engine, sampling=SamplingParams(stop_token_ids=(stop,), ignore_eos=True)) as client:
        first, second = await client.extend(7), await client.extend(5)
    assert [*first.choices, *second.choices] == expected
    assert [*first.entropies, *second.entropies] == pytest.approx(
        [entropy(PROMPT + expected[:n]) for n in range(12)], abs=1e-5
    )


async def test_extending_with_sampling_equals_verifying() -> None:
    sampling = SamplingParams(temperature=1.0, top_k=6, seed=5)
    async with opened(stand_in_engine(StandIn()), sampling=sampling) as client:
        drawn = (await client.extend(6)).choices
    async with opened(stand_in_engine(StandIn()), sampling=sampling) as client:
        answer = await client.verify(*drawn[:5])
    assert answer.choices == drawn and not answer.excluded_drafts
    assert list(drawn) != greedy(PROMPT, 6)


async def test_a_draft_outside_the_filters_is_excluded() -> None:
    least = int(hash_logprobs(PROMPT).argmin())
    async with opened(
        stand_in_engine(StandIn()), sampling=SamplingParams(temperature=1.0, top_k=6)
    ) as client:
        answer = await client.verify(least)
    assert answer.excluded_drafts == {0}


@pytest.mark.parametrize("serves_scored_rows", [False, True])
async def test_positions_that_the_cache_holds_are_never_read(serves_scored_rows: bool) -> None:
    # The stand-in fills rows that the cache served with NaN, and ids of -1.
    llm = StandIn(serves_scored_rows=serves_scored_rows)
    engine, expected = stand_in_engine(llm), greedy(PROMPT, 60)
    for _ in range(2):
        async with opened(engine) as client:
            for start in range(0, 45, 15):
                answer = await client.verify(*expected[start : start + 15])
                assert list(answer.choices) == expected[start : start + 16]
                client.sequence.extend(expected[start : start + 15])
    skipped = [params.skip_reading_prefix_cache for _, params in llm.requests]
    assert any(skipped) is serves_scored_rows


async def test_an_engine_that_ignores_the_request_to_skip_its_cache_is_an_error() -> None:
    class Stubborn(StandIn):
        def _num_cached(self, tokens: list[int], params: Any, salt: str) -> int:
            return (len(tokens) - 1) // BLOCK * BLOCK

    async with opened(stand_in_engine(Stubborn())) as client:
        with pytest.raises(InternalError, match="did not compute the positions"):
            await client.verify(*greedy(PROMPT, 30))


async def test_a_long_prompt_is_computed_before_its_drafts_are_scored() -> None:
    llm = StandIn()
    prompt = [3 + n % 50 for n in range(400)]
    async with opened(stand_in_engine(llm), prompt) as client:
        answer = await client.verify(*greedy(prompt, 3))
        assert list(answer.choices) == greedy(prompt, 4)
        assert [params.prompt_logprobs is None for _, params in llm.requests] == [True, False]
        assert answer.times.batch_tokens == 399 and answer.times.prefill_tokens >= 399
        await client.verify(*greedy(prompt, 3))
    assert len(llm.requests) == 3


async def test_a_round_computes_at_most_a_block_and_its_draft() -> None:
    expected = greedy(PROMPT, 200)
    async with opened(stand_in_engine(StandIn())) as client:
        await client.verify()
        for start in range(0, 150, 7):
            answer = await client.verify(*expected[start : start + 15])
            assert answer.times.batch_tokens <= BLOCK + 15 + 1
            client.sequence.extend(expected[start : start + 7])


@pytest.mark.parametrize(("salt", "reused"), [("", 32), ("other", 0)])
async def test_prefixes_are_shared_within_a_cache_salt(salt: str, reused: int) -> None:
    engine = stand_in_engine(StandIn())
    async with opened(engine) as client:
        assert (await client.verify()).times.reused_tokens == 0
        assert (await client.verify()).times.reused_tokens == 0
    async with opened(engine, cache_salt=salt) as client:
        answer = await client.verify()
    assert answer.times.reused_tokens == answer.load.reused_tokens == reused


async def test_a_higher_priority_comes_first_in_vllm() -> None:
    llm = StandIn()
    async with opened(stand_in_engine(llm), priority=3) as client:
        await client.verify()
    assert llm.priorities == [-3]


async def test_an_unknown_prefix_is_stale_and_a_replay_is_served() -> None:
    async with VllmTarget(stand_in_engine(StandIn())).open(Open("r", len(PROMPT))) as session:
        tokens = TokenSequence(PROMPT)
        ahead = SequenceUpdate(1, 40, (5,), 40, tokens.prefix_hash(40))
        with pytest.raises(StaleState):
            await session.step(VerifyStep(ahead, 0))
        answer = await session.step(VerifyStep(SequenceUpdate(2, 0, (*PROMPT, 5), 40, 0), 0))
        assert list(answer.choices) == greedy([*PROMPT, 5], 1) and answer.step_id == 2
        with pytest.raises(InvalidRequest, match=r"update\.keep is 3"):
            await session.step(VerifyStep(SequenceUpdate(3, 3, (), 3, tokens.prefix_hash(3)), 0))
