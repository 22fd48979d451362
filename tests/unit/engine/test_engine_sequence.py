"""Absolute-position updates at the server."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Role
from flyserve.core.sequence import SequenceUpdate, TokenSequence
from services.engine.base import ForwardInput, Replan
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner


@pytest.fixture
def runner() -> SimulatedRunner:
    return SimulatedRunner(SimulatedConfig(vocab_size=96), Role.TARGET, 4, 1000)


@pytest.fixture
def sequence(runner: SimulatedRunner, make_sequence: Callable[..., EngineSequence]) -> EngineSequence:
    return make_sequence(runner)


def update(keep: int, tokens: Sequence[int], decided: int, known: Sequence[int] = ()) -> SequenceUpdate:
    return SequenceUpdate(1, keep, tuple(tokens), decided, TokenSequence(known).prefix_hash(keep))


def all_work(job: Any, runner: SimulatedRunner) -> list[ForwardInput]:
    done = []
    try:
        done.append(next(job))
        while True:
            done.append(job.send(runner.forward([done[-1]])[0]))
    except StopIteration:
        return done


def test_a_preempted_sequence_keeps_its_tokens_and_is_computed_again(
    sequence: EngineSequence, runner: SimulatedRunner
) -> None:
    sequence.apply(update(0, [1, 2, 3], 3))
    all_work(sequence.score(), runner)
    runner.resize(sequence.slot, 0)
    sequence.forget_kv()
    assert sequence.num_computed == 0
    sequence.apply(update(3, [4], 3, [1, 2, 3]))
    assert runner.resize(sequence.slot, 64)
    assert [(w.start, list(w.tokens)) for w in all_work(sequence.score(), runner)] == [(0, [1, 2, 3, 4])]


@pytest.mark.parametrize("num_forwards", range(4))
def test_a_job_that_is_preempted_begins_again(
    sequence: EngineSequence, runner: SimulatedRunner, num_forwards: int
) -> None:
    sequence.apply(update(0, range(30), 30))
    expected = all_work(sequence.score(2), runner)
    sequence.forget_kv()
    job = sequence.score(2)
    item = next(job)
    for _ in range(num_forwards):
        item = job.send(runner.forward([item])[0])
    sequence.forget_kv()
    assert job.throw(Replan()) == expected[0]
    assert all_work(sequence.score(2), runner) == expected


def test_only_tokens_without_kv_are_computed(sequence: EngineSequence, runner: SimulatedRunner) -> None:
    sequence.apply(update(0, [1, 2, 3, 4, 5], 5))
    assert [(w.start, len(w.tokens)) for w in all_work(sequence.score(), runner)] == [(0, 5)]
    sequence.apply(update(5, [6, 7], 5, [1, 2, 3, 4, 5]))
    assert [(w.start, list(w.tokens)) for w in all_work(sequence.score(2), runner)] == [(5, [6, 7])]
    assert [(w.start, list(w.tokens)) for w in all_work(sequence.score(2), runner)] == [(5, [6, 7])]
    sequence.apply(update(6, [8], 6, [1, 2, 3, 4, 5, 6]))
    assert [(w.start, list(w.tokens)) for w in all_work(sequence.score(3), runner)] == [(4, [5, 6, 8])]


def test_a_replay_keeps_the_kv_of_the_common_prefix(
    sequence: EngineSequence, runner: SimulatedRunner
) -> None:
    sequence.apply(update(0, [1, 2, 3, 4], 4))
    all_work(sequence.score(), runner)
    sequence.apply(update(0, [1, 2, 9, 4], 4))
    assert [item.start for item in all_work(sequence.score(), runner)] == [2]


@pytest.mark.parametrize("length", [8, 9, 16, 17, 23, 40])
@pytest.mark.parametrize("num_outputs", [1, 3, 8])
def test_long_prefills_go_in_chunks(
    sequence: EngineSequence, runner: SimulatedRunner, length: int, num_outputs: int
) -> None:
    sequence.apply(update(0, range(length), 0))
    forward_inputs = all_work(sequence.score(num_outputs), runner)
    assert [token for item in forward_inputs for token in item.tokens] == list(range(length))
    assert all(len(item.tokens) <= 8 for item in forward_inputs)
    assert [item.num_outputs for item in forward_inputs] == [0] * (len(forward_inputs) - 1) + [num_outputs]
    assert list(forward_inputs[-1].drafts) == [*range(length - num_outputs + 1, length), -1]


@pytest.mark.parametrize("num_outputs", [0, 4])
def test_outputs_lie_within_the_sequence(sequence: EngineSequence, num_outputs: int) -> None:
    sequence.apply(update(0, [1, 2, 3], 0))
    with pytest.raises(InvalidRequest):
        next(sequence.score(num_outputs))


def test_an_abandoned_score_leaves_the_sequence_usable(
    sequence: EngineSequence, runner: SimulatedRunner
) -> None:
    sequence.apply(update(0, range(20), 0))
    job = sequence.score()
    runner.forward([next(job)])
    job.close()
    assert sequence.num_computed == 0
    assert len(all_work(sequence.score(), runner)) == 3
