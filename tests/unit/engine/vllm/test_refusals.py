"""Requests that a target on vLLM refuses, by the name of the field."""

from typing import Any

import pytest

from fly.errors import InvalidRequest
from fly.messages import Extend, Open, VerifyStep
from fly.request import SamplingParams
from fly.sequence import SequenceUpdate
from fly.types import Coupling, EntropyEstimator
from services.target.vllm import VllmTarget
from tests.unit.engine.vllm.vllm_client import PROMPT, greedy, opened
from tests.unit.engine.vllm.vllm_stand_in import StandIn, stand_in_engine


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"entropy": EntropyEstimator.NORMALIZED}, "entropy is normalized"),
        ({"sampling": SamplingParams(temperature=0.5)}, r"sampling.top_k is 0, must be 1 to 64"),
        ({"sampling": SamplingParams(temperature=0.5, top_k=65)}, r"sampling.top_k is 65, must be 1 to 64"),
        ({"sampling": SamplingParams(repetition_penalty=1.1)}, r"repetition_penalty is 1.1, must be 1.0"),
        ({"sampling": SamplingParams(presence_penalty=0.5)}, "presence_penalty is 0.5"),
        ({"sampling": SamplingParams(frequency_penalty=0.5)}, "frequency_penalty is 0.5"),
        ({"sampling": SamplingParams(logit_bias={3: 1.0})}, "logit_bias is 1 tokens, must be absent"),
        ({"sampling": SamplingParams(min_tokens=2)}, "min_tokens is 2, must be 0"),
        ({"sampling": SamplingParams(stop_token_ids=(64,))}, r"stop_token_ids\[0\] is 64"),
        ({"num_logprobs": 21}, "num_logprobs is 21"),
    ],
)
async def test_what_cannot_be_exact_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        async with opened(stand_in_engine(StandIn()), **fields):
            pass


async def test_a_greedy_request_may_have_any_filters() -> None:
    async with opened(stand_in_engine(StandIn()), sampling=SamplingParams(top_k=0, top_p=0.5)) as client:
        assert list((await client.verify()).choices) == greedy(PROMPT, 1)


async def test_an_estimator_that_nobody_uses_is_not_refused() -> None:
    fields = {"entropy": EntropyEstimator.NORMALIZED, "without_entropies": True}
    async with opened(stand_in_engine(StandIn()), **fields) as client:
        assert list((await client.extend(2)).choices) == greedy(PROMPT, 2)


async def test_steps_that_break_a_limit_are_refused() -> None:
    async with VllmTarget(stand_in_engine(StandIn())).open(Open("r", 2)) as session:
        with pytest.raises(InvalidRequest, match="num_drafts is 2, must be below 2"):
            await session.step(VerifyStep(SequenceUpdate(1, 0, (3, 4), 2, 0), 2))
        with pytest.raises(InvalidRequest, match="max_tokens is 0 after 2 tokens"):
            await session.step(Extend(SequenceUpdate(1, 0, (3, 4), 2, 0), 0))
        with pytest.raises(InvalidRequest, match="the context holds 511"):
            await session.step(VerifyStep(SequenceUpdate(1, 0, (3,) * 512, 2, 0), 0))
    sampling = SamplingParams(temperature=1.0, top_k=4, coupling=Coupling.REJECTION)
    async with VllmTarget(stand_in_engine(StandIn())).open(Open("r", 2, sampling)) as session:
        step = VerifyStep(SequenceUpdate(1, 0, (3, 4, 5), 2, 0), 1, distributions=())
        assert await session.step(step)
