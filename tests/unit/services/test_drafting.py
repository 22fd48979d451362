"""The drafting loop: the same draft for any proposal, and fewer forwards for good proposals."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Open, Role
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceUpdate, common_length
from flyserve.core.types import Coupling
from services.drafter.drafting import Drafting, DraftResult, Proposer
from services.engine.base import ForwardInput, Job, Scores
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner

PROMPT = (20, 21, 22, 23)
NO_END = frozenset[int]()
GREEDY = SamplingParams(stop_token_ids=(2,))
SAMPLED = [replace(GREEDY, temperature=1.0, seed=5, coupling=coupling) for coupling in Coupling]


def draft(
    sequence: EngineSequence, max_tokens: int, ending_ids: frozenset[int], proposer: Proposer
) -> Job[DraftResult]:
    drafting = Drafting(sequence, max_tokens, ending_ids, proposer)
    yield from drafting.job()
    return drafting.result()


def run(job: Job[DraftResult], runner: SimulatedRunner) -> DraftResult:
    try:
        work = next(job)
        while True:
            assert runner.resize(work.slot, work.start + len(work.tokens))
            try:
                scores = runner.forward([work])[0]
            except InvalidRequest as error:
                work = job.throw(error)
            else:
                work = job.send(scores)
    except StopIteration as stop:
        result: DraftResult = stop.value
        return result


def open_sequence(sampling: SamplingParams = GREEDY, **fields: Any) -> tuple[EngineSequence, SimulatedRunner]:
    config = SimulatedConfig(response_tokens=(5, 5), end_id=2, uncertain_share=1.0)
    runner = SimulatedRunner(config, Role.DRAFTER, max_sequences=1, kv_tokens=1024)
    slot = runner.allocate(len(PROMPT))
    assert slot is not None
    opening = Open("test", len(PROMPT), sampling, **fields)
    sequence = EngineSequence(opening, slot, config.vocab_size, config.context_length, chunk_tokens=64)
    sequence.apply(SequenceUpdate(1, 0, PROMPT, len(PROMPT), 0))
    return sequence, runner


class Script(Proposer):
    """A proposer of listed tokens, call by call."""

    def __init__(self, proposals: list[list[int]]) -> None:
        self._proposals = iter(proposals)

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        return tuple(next(self._proposals, [])[:max_tokens])


class Oracle(Proposer):
    """A proposer of the right tokens, except at one position."""

    def __init__(self, truth: tuple[int, ...], wrong_at: int | None = None) -> None:
        self._tokens = [token + (index == wrong_at) for index, token in enumerate(truth)]

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        done = len(sequence) - len(PROMPT)
        return tuple(self._tokens[done : done + max_tokens])


def drafted_with(
    proposer: Proposer,
    max_tokens: int = 4,
    ending_ids: frozenset[int] = NO_END,
    sampling: SamplingParams = GREEDY,
    **fields: Any,
) -> DraftResult:
    sequence, runner = open_sequence(sampling, **fields)
    result = run(draft(sequence, max_tokens, ending_ids, proposer), runner)
    assert sequence.tokens.ids == [*PROMPT, *result.tokens]
    return result


@pytest.mark.parametrize(("wrong_at", "forwards", "supplied"), [(None, 1, 3), (1, 2, 2)])
def test_a_proposal_saves_the_forwards_of_its_right_tokens(
    wrong_at: int | None, forwards: int, supplied: int
) -> None:
    alone = drafted_with(Proposer())
    assert alone.forwards == 4
    accelerated = drafted_with(Oracle(alone.tokens, wrong_at))
    assert accelerated == DraftResult(alone.tokens, forwards=forwards, sub_drafter_tokens=supplied)


@given(st.lists(st.lists(st.integers(16, 1023), max_size=6), max_size=12), st.integers(0, 12))
def test_the_draft_does_not_depend_on_the_proposals(proposals: list[list[int]], max_tokens: int) -> None:
    alone = drafted_with(Proposer(), max_tokens)
    assert len(alone.tokens) == max_tokens
    assert drafted_with(Script(proposals), max_tokens).tokens == alone.tokens


@pytest.mark.parametrize("sampling", SAMPLED)
@pytest.mark.parametrize("wrong_at", [None, 0, 2])
def test_proposals_are_scored_against_the_models_own_draws(
    sampling: SamplingParams, wrong_at: int | None
) -> None:
    alone = drafted_with(Proposer(), 5, sampling=sampling)
    assert alone.tokens != drafted_with(Proposer(), 5).tokens
    accelerated = drafted_with(Oracle(alone.tokens, wrong_at), 5, sampling=sampling)
    assert (accelerated.tokens, accelerated.distributions) == (alone.tokens, alone.distributions)
    assert accelerated.forwards < alone.forwards
    num_distributions = 5 if sampling.coupling is Coupling.REJECTION else 0
    assert len(alone.distributions) == num_distributions
    assert all(token in q.ids for token, q in zip(alone.tokens, alone.distributions, strict=False))


def test_a_draft_cut_at_a_stop_token_has_one_distribution_per_token() -> None:
    alone = drafted_with(Proposer(), 10, sampling=SAMPLED[1])
    accelerated = drafted_with(Oracle(alone.tokens), 10, frozenset({2}), SAMPLED[1])
    assert accelerated.tokens == alone.tokens[:6] and len(accelerated.distributions) == 6


@pytest.mark.parametrize("max_tokens", [6, 10])
def test_a_draft_ends_after_a_stop_token_if_requested(max_tokens: int) -> None:
    alone = drafted_with(Proposer(), max_tokens)
    ended = drafted_with(Proposer(), max_tokens, frozenset({2}))
    assert ended.tokens == alone.tokens[:6]
    assert ended.tokens[-1] == 2
    accelerated = drafted_with(Oracle(alone.tokens), max_tokens, frozenset({2}))
    assert accelerated.tokens == ended.tokens


class Parrot(Proposer):
    """A proposer that repeats an earlier response of the same length, whatever the request says."""

    def repeat(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        return EARLIER[len(sequence) - len(PROMPT) :][:max_tokens]


EARLIER = (30, 31, 32, 33, 2, 34)
COPIES: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    ({}, {}, 6),
    ({"logit_bias": {32: 5.0}}, {}, 6),
    ({"logit_bias": {32: -100.0}}, {}, 2),
    ({"min_tokens": 5}, {}, 4),
    ({"min_tokens": 4}, {}, 6),
    ({"temperature": 1.0, "seed": 5}, {}, 0),
    ({"presence_penalty": 0.1}, {}, 0),
    ({"frequency_penalty": 0.1}, {}, 0),
    ({"repetition_penalty": 1.1}, {}, 0),
    ({}, {"grammar": "any"}, 0),
    ({}, {"standalone": True}, 0),
    ({"logit_bias": {32: 5.0}}, {"standalone": True}, 0),
]


@pytest.mark.parametrize(("parameters", "fields", "num_copied"), COPIES)
def test_a_copy_of_an_earlier_response_keeps_to_the_request(
    parameters: dict[str, Any], fields: dict[str, Any], num_copied: int
) -> None:
    sampling = replace(GREEDY, **parameters)
    found = drafted_with(Parrot(), 6, sampling=sampling, **fields)
    assert common_length(found.tokens, EARLIER) == num_copied
    if not num_copied:
        assert found == drafted_with(Proposer(), 6, sampling=sampling, **fields)


class Exhausted(SimulatedRunner):
    """A model to which the request leaves no token from the third position of the response on."""

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        (item,), (scores,) = batch, super().forward(batch)
        left = max(0, len(PROMPT) + 2 - item.first_position)
        if not left and item.num_outputs:
            raise NO_TOKEN
        return [replace(scores, choices=scores.choices[:left], excluded=scores.excluded[:left])]


NO_TOKEN = InvalidRequest.of("sampling.logit_bias", "leaves no token to choose")


@pytest.mark.parametrize("standalone", [False, True])
@pytest.mark.parametrize("num_right", [0, 1, 2, 4])
def test_a_draft_ends_where_the_request_leaves_no_token(standalone: bool, num_right: int) -> None:
    alone = drafted_with(Proposer(), 4)
    sequence, runner = open_sequence(standalone=standalone)
    runner.__class__ = Exhausted
    job = draft(sequence, 4, NO_END, Oracle(alone.tokens, wrong_at=num_right))
    assert run(job, runner).tokens == alone.tokens[:2]
    later = draft(sequence, 4, NO_END, Oracle(alone.tokens))
    if standalone:
        with pytest.raises(InvalidRequest, match="leaves no token"):
            run(later, runner)
    else:
        assert run(later, runner).tokens == ()
