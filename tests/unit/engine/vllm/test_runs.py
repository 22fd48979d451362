"""vLLM goes on decoding between extensions: nothing is lost, repeated or left behind."""

import asyncio
from typing import Any

import pytest

from fly.errors import InternalError
from fly.request import SamplingParams
from tests.unit.engine.vllm.vllm_client import PROMPT, greedy, opened
from tests.unit.engine.vllm.vllm_stand_in import VOCAB_SIZE, StandIn, stand_in_engine


async def test_a_run_that_is_used_up_is_followed_by_another() -> None:
    llm, expected = StandIn(), greedy(PROMPT, 200)
    async with opened(stand_in_engine(llm)) as client:
        found = list[int]()
        while len(found) < 200:
            found += (await client.extend(7)).choices
    assert found[:200] == expected
    assert len(llm.requests) == 1 + -(-193 // 64)


async def test_a_run_decodes_no_more_than_the_request_may_need() -> None:
    llm = StandIn()
    async with opened(stand_in_engine(llm), max_new_tokens=10) as client:
        for _ in range(10):
            await client.extend(1)
    assert llm.num_streamed == 9


async def test_a_run_ends_at_a_stop_token() -> None:
    expected = greedy(PROMPT, 12)
    stop = expected[5]
    async with opened(stand_in_engine(StandIn()), sampling=SamplingParams(stop_token_ids=(stop,))) as client:
        found = [*(await client.extend(1)).choices]
        while found[-1] != stop:
            found += (await client.extend(3)).choices
    assert found == expected[: expected.index(stop) + 1]


async def test_another_step_ends_what_vllm_decodes_and_sees_none_of_it() -> None:
    llm = StandIn(pace=asyncio.Event())
    expected = greedy(PROMPT, 9)
    async with opened(stand_in_engine(llm)) as client:
        await client.extend(2)
        await client.extend(1)
        assert llm.num_running == 1
        answer = await client.verify(*expected[3:8])
        assert list(answer.choices) == expected[3:9] and llm.num_running == 0
        client.sequence.extend([60])
        assert list((await client.extend(2)).choices) == greedy([*PROMPT, *expected[:3], 60], 2)


async def test_a_sequence_that_changed_is_continued_from_its_end() -> None:
    async with opened(stand_in_engine(StandIn())) as client:
        await client.extend(2)
        await client.extend(2)
        client.sequence.truncate(len(PROMPT) + 3)
        client.sequence.extend([9])
        start = list(client.sequence.ids)
        assert list((await client.extend(3)).choices) == greedy(start, 3)


async def test_closing_a_sequence_ends_its_run() -> None:
    llm = StandIn(pace=asyncio.Event())
    async with opened(stand_in_engine(llm)) as client:
        await client.extend(1)
        await client.extend(1)
        assert llm.num_running == 1
    assert llm.num_running == 0


async def test_a_run_that_fails_ends_its_step() -> None:
    llm = StandIn()
    async with opened(stand_in_engine(llm)) as client:
        await client.extend(1)
        llm.error = ValueError("no such thing")
        with pytest.raises(InternalError, match="no such thing"):
            await client.extend(1)
        llm.error = None
        assert list((await client.extend(1)).choices) == greedy(PROMPT, 2)[1:]


async def test_a_step_that_is_cancelled_loses_no_token() -> None:
    llm, expected = StandIn(pace=asyncio.Event()), greedy(PROMPT, 6)
    async with opened(stand_in_engine(llm)) as client:
        await client.extend(1)
        waiting = asyncio.create_task(client.extend(3))
        while llm.num_streamed < 1:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        llm.pace.set()
        assert list((await client.extend(5)).choices) == expected[1:6]


async def test_a_run_ends_where_vllm_took_another_of_equal_tokens() -> None:
    class TakesOthers(StandIn):
        def answer(self, tokens: list[int], params: Any, salt: str) -> Any:
            found = super().answer(tokens, params, salt)
            if params.max_tokens > 4:
                rows = found.outputs[0].logprobs[2]
                rows.logprobs[0, 2], rows.ids[0, 2] = rows.logprobs[0, 1], 0
            return found

    async with opened(stand_in_engine(TakesOthers())) as client:
        first = await client.extend(1)
        second = await client.extend(6)
        start = [*PROMPT, *first.choices, *second.choices]
        third = await client.extend(1)
    assert list(second.choices) == [*greedy(PROMPT, 3)[1:], 0]
    assert list(third.choices) == greedy(start, 1)


async def test_single_tokens_in_a_row_are_parts_of_one_request() -> None:
    llm, expected = StandIn(), greedy(PROMPT, 12)
    async with opened(stand_in_engine(llm)) as client:
        for token in expected:
            answer = await client.verify()
            assert answer.choices == (token,) and (token == expected[0] or not answer.times.prefill_tokens)
            client.sequence.extend(answer.choices)
        assert list((await client.extend(3)).choices) == greedy([*PROMPT, *expected], 3)
    assert len(llm.requests) == 2


async def test_a_client_may_take_another_token_than_the_single_one() -> None:
    async with opened(stand_in_engine(StandIn())) as client:
        for token in (60, 61, 62):
            await client.verify()
            client.sequence.extend([token])
        assert list((await client.verify()).choices) == greedy([*PROMPT, 60, 61, 62], 1)
        assert list((await client.verify()).choices) == greedy([*PROMPT, 60, 61, 62], 1)


async def test_one_token_after_another_is_no_prefill() -> None:
    async with opened(stand_in_engine(StandIn())) as client:
        for step in range(3):
            answer = await client.verify(60)
            client.sequence.extend([61])
            assert bool(answer.times.prefill_tokens) is (step == 0)


async def test_a_plain_response_is_decoded_without_scores_but_for_its_first_token() -> None:
    llm, expected = StandIn(), greedy(PROMPT, 200)
    async with opened(stand_in_engine(llm), without_entropies=True, max_new_tokens=200) as client:
        found, entropies = list[int](), list[float]()
        while len(found) < 200:
            answer = await client.extend(min(7, 200 - len(found)) if found else 1)
            found += answer.choices
            entropies += answer.entropies
    assert found == expected and not entropies
    first, second = (params for _, params in llm.requests)
    assert first.logprobs and second.logprobs is None
    assert (second.max_tokens, second.stream_interval) == (199, 7)


async def test_log_probabilities_are_reported_without_entropies() -> None:
    async with opened(stand_in_engine(StandIn()), without_entropies=True, num_logprobs=2) as client:
        answers = [await client.extend(count) for count in (1, 3, 3)]
    assert [len(answer.logprobs) for answer in answers] == [1, 3, 3]
    assert not any(answer.entropies for answer in answers)


async def test_a_verification_follows_a_plain_run() -> None:
    expected = greedy(PROMPT, 12)
    async with opened(stand_in_engine(StandIn()), without_entropies=True) as client:
        for count in (1, 2, 3):
            await client.extend(count)
        assert list((await client.verify(*expected[6:9])).choices) == expected[6:10]


@pytest.mark.parametrize("index", [0, 2])
async def test_padding_of_the_embedding_is_never_a_token_of_a_plain_response(index: int) -> None:
    class Pads(StandIn):
        def answer(self, tokens: list[int], params: Any, salt: str) -> Any:
            found = super().answer(tokens, params, salt)
            if params.logprobs is None:
                found.outputs[0].token_ids[index] = VOCAB_SIZE + 3
            return found

    expected = greedy(PROMPT, 6)
    async with opened(stand_in_engine(Pads()), without_entropies=True) as client:
        found = list[int]()
        while len(found) < 6:
            found += (await client.extend(4 if found else 1)).choices
    assert found[:6] == expected
