"""The pure scheduler: order, budget, fairness, cancellation, errors."""

import contextlib
from collections import Counter
from collections.abc import Generator
from dataclasses import replace

import pytest

from flyserve.core.errors import InternalError
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, Job, Replan, Scores
from services.engine.scheduling.scheduler import (
    IDLE_PRIORITY,
    PATIENCE_TURNS,
    STARVATION_TURNS,
    ScheduledJob,
    Scheduler,
)

ANSWER = Scores((7,), (0.0,), (False,))


def forward_input(slot: int, num_tokens: int = 1) -> ForwardInput:
    return ForwardInput(slot, 0, [0] * num_tokens, 1, SamplingParams(), 0, [0] * num_tokens)


def job(slot: int, turns: int = 1, num_tokens: int = 1) -> Job[int]:
    total = 0
    for _ in range(turns):
        scores = yield forward_input(slot, num_tokens)
        total += scores.choices[0]
    return total


def turn(scheduler: Scheduler) -> list[int]:
    batch = scheduler.next_batch()
    slots = [scheduled.next_input.slot for scheduled in batch if scheduled.next_input]
    scheduler.complete(batch, [ANSWER] * len(batch), 100, 10)
    return slots


def results(jobs: list[ScheduledJob]) -> list[object]:
    return [scheduled.result for scheduled in jobs]


def test_jobs_share_forwards_and_return_their_results() -> None:
    scheduler = Scheduler(16)
    for slot, turns in enumerate((1, 3, 2)):
        scheduler.submit(job(slot, turns))
    assert [turn(scheduler) for _ in range(4)] == [[0, 1, 2], [1, 2], [1], []]
    assert results(scheduler.take_finished()) == [7, 14, 21]
    assert len(scheduler) == 0


def test_the_budget_bounds_a_batch_but_never_stops_it() -> None:
    scheduler = Scheduler(16)
    scheduler.submit(job(0, num_tokens=40))
    assert turn(scheduler) == [0]
    for slot in range(5):
        scheduler.submit(job(slot, num_tokens=6))
    assert [len(turn(scheduler)) for _ in range(3)] == [2, 2, 1]


def test_short_inputs_go_first_but_long_ones_do_not_starve() -> None:
    scheduler = Scheduler(16)
    scheduler.submit(job(99, num_tokens=16))
    for slot in range(8):
        scheduler.submit(job(slot, turns=50, num_tokens=2))
    turns = [turn(scheduler) for _ in range(PATIENCE_TURNS + 1)]
    assert all(99 not in slots for slots in turns[: PATIENCE_TURNS - 1])
    assert any(99 in slots for slots in turns)


@pytest.mark.parametrize("num_long", [1, 3, 20])
def test_short_inputs_within_half_the_budget_never_wait_for_long_ones(num_long: int) -> None:
    scheduler = Scheduler(64)
    for slot in range(num_long):
        scheduler.submit(job(slot, turns=100, num_tokens=32))
    served: Counter[int] = Counter()
    for index in range(60):
        shorts = [100 + 4 * index + each for each in range(4)]
        for slot in shorts:
            scheduler.submit(job(slot, num_tokens=8))
        slots = turn(scheduler)
        assert set(shorts) <= set(slots)
        served.update(slot for slot in slots if slot < 100)
    assert sum(served.values()) == 60 and max(served.values()) - min(served.values()) <= 1


@pytest.mark.parametrize("num_long", [1, 20])
def test_saturating_short_inputs_leave_half_to_long_ones_that_waited(num_long: int) -> None:
    scheduler = Scheduler(64)
    for slot in range(num_long):
        scheduler.submit(job(slot, turns=100, num_tokens=32))
    for slot in range(100, 120):
        scheduler.submit(job(slot, turns=1000, num_tokens=8))
    turns = [turn(scheduler) for _ in range(200)]
    num_served = sum(slot < 100 for slots in turns for slot in slots)
    assert 200 // (PATIENCE_TURNS + 1) <= num_served <= 200
    served = Counter(slot for slots in turns for slot in slots)
    for group in (range(num_long), range(100, 120)):
        counts = [served[slot] for slot in group]
        assert max(counts) - min(counts) <= 1
    assert all(sum(slot >= 100 for slot in slots) >= 4 for slots in turns)


@pytest.mark.parametrize("num_tokens", [1, 16])
@pytest.mark.parametrize("priority", [-1, -(2**31)])
def test_constant_load_of_a_higher_priority_starves_no_job(num_tokens: int, priority: int) -> None:
    scheduler = Scheduler(16)
    for slot in range(3):
        scheduler.submit(job(slot, num_tokens=num_tokens), priority)
    for slot in range(100, 140):
        scheduler.submit(job(slot, turns=1000, num_tokens=4), priority=5)
    turns = [turn(scheduler) for _ in range(STARVATION_TURNS + 3)]
    low = [slot for slots in turns for slot in slots if slot < 100]
    assert low == [0, 1, 2] and not any(
        slot < 100 for slots in turns[: STARVATION_TURNS - 1] for slot in slots
    )


def test_an_overdue_job_that_is_not_admitted_does_not_delay_the_next() -> None:
    scheduler = Scheduler(4)
    for slot in range(2):
        scheduler.submit(job(slot), priority=-1)
    for slot in range(100, 110):
        scheduler.submit(job(slot, turns=1000), priority=0)
    for _ in range(STARVATION_TURNS - 1):
        turn(scheduler)
    batch = scheduler.next_batch(lambda item: item.slot != 0)
    assert next(scheduled.next_input.slot for scheduled in batch if scheduled.next_input) == 1


def test_cancel_closes_the_generator() -> None:
    closed: list[bool] = []

    def careful() -> Generator[ForwardInput, Scores, None]:
        try:
            yield forward_input(0)
        finally:
            closed.append(True)

    scheduler = Scheduler(16)
    scheduled = scheduler.submit(careful())
    scheduler.cancel(scheduled)
    scheduler.cancel(scheduled)
    assert closed == [True] and len(scheduler) == 0 and not scheduler.take_finished()


def test_scores_with_an_error_end_their_job_only() -> None:
    scheduler = Scheduler(16)
    jobs = [scheduler.submit(job(slot)) for slot in range(2)]
    batch = scheduler.next_batch()
    scheduler.complete(batch, [replace(ANSWER, error="the logits are not finite"), ANSWER])
    assert isinstance(jobs[0].error, InternalError) and str(jobs[0].error) == "the logits are not finite"
    assert jobs[1].result == 7


def test_a_parked_job_runs_only_after_it_is_resumed_with_a_new_input() -> None:
    def replanning(slot: int) -> Job[int]:
        try:
            yield forward_input(slot)
        except Replan:
            yield forward_input(slot, 3)
        return 5

    scheduler = Scheduler(16)
    scheduled = scheduler.submit(replanning(0))
    assert scheduler.park(1) is None and scheduler.park(0) is scheduled
    assert turn(scheduler) == [] and len(scheduler) == 0
    assert scheduler.resume(1) is None and scheduler.resume(0) is scheduled
    assert scheduled.next_input is not None and len(scheduled.next_input.tokens) == 3
    assert turn(scheduler) == [0] and scheduled.result == 5


@pytest.mark.parametrize("ends", ["cancel", "throw"])
def test_a_parked_job_can_be_ended(ends: str) -> None:
    scheduler = Scheduler(16)
    scheduled = scheduler.submit(job(0))
    scheduler.park(0)
    if ends == "cancel":
        scheduler.cancel(scheduled)
    else:
        scheduler.throw(0, ValueError("gone"))
    assert scheduler.resume(0) is None and len(scheduler) == 0
    assert isinstance(scheduled.error, ValueError) == (ends == "throw")


def test_a_new_input_keeps_the_order_of_waiting() -> None:
    def replanning(slot: int) -> Job[None]:
        while True:
            with contextlib.suppress(Replan):
                yield forward_input(slot)
                return

    scheduler = Scheduler(1)
    first, _ = scheduler.submit(replanning(0)), scheduler.submit(replanning(1))
    scheduler.replan(first)
    assert [turn(scheduler) for _ in range(2)] == [[0], [1]]


def test_times_add_up() -> None:
    scheduler = Scheduler(16)
    scheduled = scheduler.submit(job(0, turns=2), now_ns=60)
    scheduler.submit(job(1))
    turn(scheduler)
    turn(scheduler)
    assert (scheduled.times.queue_ns, scheduled.times.forward_ns, scheduled.times.batch_size) == (40, 20, 2)


def test_idle_jobs_share_no_forward_with_others_and_wait_for_them() -> None:
    scheduler = Scheduler(16)
    scheduler.submit(job(0, turns=2), IDLE_PRIORITY)
    scheduler.submit(job(1, turns=2), IDLE_PRIORITY)
    assert turn(scheduler) == [0, 1]
    scheduler.submit(job(2, turns=2), priority=-(2**31))
    assert [turn(scheduler) for _ in range(4)] == [[2], [2], [0, 1], []]
