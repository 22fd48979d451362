"""Sampling over real sockets: the target's and the drafter's streams with simulated engines."""

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Draft, Open, Role
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import TokenSequence, common_length
from flyserve.core.types import Coupling, SparseDistribution
from services.common.streams import DrafterStream, TargetStream
from services.drafter.servicer import host_engine as host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.target.servicer import host_engine as host_target
from tests.contract.engine_rig import PROMPT, simulated
from tests.support.serving import connected

LANGUAGE: dict[str, Any] = {"vocab_size": 40, "uncertain_share": 0.9, "response_tokens": (500, 500)}
SHARED = SamplingParams(temperature=1.0, seed=3, stop_token_ids=(2,))
REJECTION = replace(SHARED, coupling=Coupling.REJECTION)


def opening(sampling: SamplingParams, num_logprobs: int | None = None) -> Open:
    return Open("test", len(PROMPT), sampling, num_logprobs=num_logprobs)


@pytest.fixture
async def target() -> AsyncIterator[grpc.aio.Channel]:
    async with simulated(Role.TARGET, **LANGUAGE) as served, connected(host_target(served)) as channel:
        yield channel


@pytest.fixture
async def drafter() -> AsyncIterator[grpc.aio.Channel]:
    async with (
        simulated(Role.DRAFTER, agreement=0.7, **LANGUAGE) as served,
        connected(host_drafter(served, SubDrafters(None))) as channel,
    ):
        yield channel


async def plain(target: grpc.aio.Channel, sampling: SamplingParams, count: int) -> list[int]:
    """Return tokens decoded one at a time."""
    sequence = TokenSequence(PROMPT)
    async with TargetStream(target, opening(sampling)) as stream:
        for _ in range(count):
            sequence.extend((await stream.verify(sequence, [], len(sequence))).choices)
    return sequence.ids[len(PROMPT) :]


async def speculated(
    target: grpc.aio.Channel, drafter: grpc.aio.Channel, sampling: SamplingParams, count: int, num_drafts: int
) -> tuple[list[int], int]:
    """Return tokens by exact speculation, and the number of accepted drafts."""
    sequence, accepted = TokenSequence(PROMPT), 0
    async with (
        TargetStream(target, opening(sampling)) as scorer,
        DrafterStream(drafter, opening(sampling)) as proposer,
    ):
        while len(sequence) < len(PROMPT) + count:
            draft = await proposer.draft(sequence, len(sequence), num_drafts)
            check_distributions_of(draft, sampling)
            answer = await scorer.verify(sequence, draft.tokens, len(sequence), draft.distributions)
            native = common_length(draft.tokens, answer.choices)
            accepted += native
            sequence.extend(answer.choices[: native + 1])
    return sequence.ids[len(PROMPT) : len(PROMPT) + count], accepted


def check_distributions_of(draft: Draft, sampling: SamplingParams) -> None:
    if sampling.coupling is not Coupling.REJECTION:
        assert draft.distributions == ()
        return
    for token, position in zip(draft.tokens, draft.distributions, strict=True):
        assert token in position.ids
        assert math.fsum(position.probabilities) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("num_drafts", [1, 4, 15])
async def test_with_shared_noise_the_drafts_change_nothing(
    target: grpc.aio.Channel, drafter: grpc.aio.Channel, num_drafts: int
) -> None:
    tokens, accepted = await speculated(target, drafter, SHARED, 60, num_drafts)
    assert tokens == await plain(target, SHARED, 60)
    assert accepted > 20
    assert tokens != await plain(target, replace(SHARED, seed=4), 60)
    assert tokens != await plain(target, replace(SHARED, temperature=0.0), 60)


async def test_rejection_accepts_drafts_and_repeats_itself(
    target: grpc.aio.Channel, drafter: grpc.aio.Channel
) -> None:
    tokens, accepted = await speculated(target, drafter, REJECTION, 60, 4)
    assert accepted > 20
    assert (tokens, accepted) == await speculated(target, drafter, REJECTION, 60, 4)


async def test_drafts_of_which_nothing_is_known_are_judged_as_certain(target: grpc.aio.Channel) -> None:
    async with TargetStream(target, opening(REJECTION)) as stream:
        unknown = await stream.verify(TokenSequence(PROMPT), [25, 26], 4)
        certain = tuple(SparseDistribution((token,), (1.0,)) for token in (25, 26))
        assert (await stream.verify(TokenSequence(PROMPT), [25, 26], 4, certain)).choices == unknown.choices


@pytest.mark.parametrize("sampling", [SHARED, REJECTION, replace(SHARED, temperature=0.0)])
async def test_log_probabilities_come_where_they_are_asked_for(
    target: grpc.aio.Channel, sampling: SamplingParams
) -> None:
    async with TargetStream(target, opening(sampling, num_logprobs=3)) as stream:
        answer = await stream.verify(TokenSequence(PROMPT), [25, 26], 4)
    assert len(answer.logprobs) == len(answer.choices) == 3
    assert [position.draft is None for position in answer.logprobs] == [False, False, True]
    for choice, position in zip(answer.choices, answer.logprobs, strict=True):
        values = [value for _, value in position.top]
        assert values == sorted(values, reverse=True) and len(values) == 3
        assert dict(position.top).get(choice, position.choice) == position.choice
    async with TargetStream(target, opening(sampling)) as stream:
        assert (await stream.verify(TokenSequence(PROMPT), [25, 26], 4)).logprobs == ()


async def test_sampling_out_of_range_is_rejected_by_name(
    target: grpc.aio.Channel, drafter: grpc.aio.Channel
) -> None:
    bad = replace(SHARED, temperature=math.nan)
    with pytest.raises(InvalidRequest) as at_target:
        await plain(target, bad, 1)
    with pytest.raises(InvalidRequest) as at_drafter:
        async with DrafterStream(drafter, opening(bad)) as stream:
            await stream.draft(TokenSequence(PROMPT), 4, 1)
    for error in (at_target, at_drafter):
        assert error.value.violations[0].field == "sampling.temperature"


async def test_a_bad_distribution_is_rejected_by_name(target: grpc.aio.Channel) -> None:
    bad = SparseDistribution((25, 26), (0.5, 0.6))
    with pytest.raises(InvalidRequest) as caught:
        async with TargetStream(target, opening(REJECTION)) as stream:
            await stream.verify(TokenSequence(PROMPT), [25], 4, (bad,))
    assert caught.value.violations[0].field == "distributions[0].probabilities"
    async with TargetStream(target, opening(SHARED)) as stream:
        await stream.verify(TokenSequence(PROMPT), [25], 4, (bad,))
