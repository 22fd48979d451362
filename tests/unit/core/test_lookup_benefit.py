"""Look-up drafts pay or are left out: responses over a model of the time that messages and forwards take."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from flyserve.core.lookup_benefit import LookupBenefit, LookupCosts
from flyserve.core.messages import StepTimes, Verification
from flyserve.core.round_record import DraftOrigin, RoundRecord
from flyserve.core.types import Decision

STEP_S = 0.5
"""Longest step of an extension."""


@dataclass(frozen=True)
class World:
    """Seconds of a message, of a forward, and of each further row of it.

    Attributes:
        short_step: Factor of the forwards of a step with fewer than 32 tokens.
    """

    message_s: float = 0.003
    forward_s: float = 0.005
    row_s: float = 0.0005
    short_step: float = 1.0

    def per_step(self, token_s: float) -> int:
        fitting = int(STEP_S / token_s) if token_s else 1
        return fitting if fitting >= 4 else 1


Drafts = Callable[[int], tuple[int, int]]
"""Return the length of the draft at a position, and how many of its tokens the target accepts."""

NEVER: Drafts = lambda position: (0, 0)  # noqa: E731
ALWAYS: Drafts = lambda position: (15, 15)  # noqa: E731
WRONG: Drafts = lambda position: (6, 0)  # noqa: E731


@dataclass
class Totals:
    seconds: float = 0.0
    requests: int = 0
    verified: int = 0


def respond(world: World, costs: LookupCosts, drafts: Drafts, num_tokens: int = 100) -> Totals:
    """Decode one response."""
    totals, position = Totals(), 0
    benefit = LookupBenefit(costs, world.per_step)
    while position < num_tokens:
        started_s, length, accepted = totals.seconds, 0, 0
        if not benefit.tokens_until_request:
            totals.requests += 1
            totals.seconds += world.message_s / 2
            length, accepted = drafts(position)
            if benefit.accept(tuple(range(1, length + 1)), world.message_s / 2):
                totals.verified += 1
                spent_s = world.message_s + world.forward_s + length * world.row_s
                totals.seconds += spent_s
                position += 1 + accepted
                is_last = position >= num_tokens
                benefit.record(verification(started_s, totals.seconds, spent_s, length, accepted, is_last))
                continue
        most = min(benefit.tokens_until_request or num_tokens, num_tokens - position)
        number = max(1, min(most, world.per_step(costs.forward_s))) if position else 1
        forward_s = number * world.forward_s * (world.short_step if number < min(32, num_tokens) else 1.0)
        spent_s = world.message_s + forward_s
        totals.seconds += spent_s
        draft = range(1, length + 1)
        choices = (*draft[:accepted], *([0] * number))[:number]
        position += number
        is_last = position >= num_tokens
        benefit.record(extension(started_s, totals.seconds, spent_s, choices, forward_s, is_last))
    return totals


def verification(
    started_s: float, answered_s: float, spent_s: float, length: int, accepted: int, is_last: bool
) -> RoundRecord:
    """Return the round of a draft that was verified."""
    answer = Verification(1, (0,) * (length + 1), ())
    return RoundRecord(
        is_last,
        Decision(()),
        started_s,
        answered_s,
        spent_s,
        StepTimes(),
        origin=DraftOrigin.DRAFTER,
        drafts=tuple(range(1, length + 1)),
        num_accepted=accepted,
        answer=answer,
    )


def extension(
    started_s: float,
    answered_s: float,
    spent_s: float,
    choices: tuple[int, ...],
    forward_s: float,
    is_last: bool,
) -> RoundRecord:
    """Return a round in which the target decoded some tokens by itself."""
    times = StepTimes(forward_ns=round(forward_s * 1e9))
    answer, number = Verification(1, choices, ()), len(choices)
    return RoundRecord(
        is_last, Decision(()), started_s, answered_s, spent_s, times, num_decoded=number, answer=answer
    )


def alone(world: World, num_tokens: int = 100) -> float:
    """Return the seconds of a response that requests no drafts."""
    per_step = world.per_step(world.forward_s)
    return num_tokens * world.forward_s + -(-num_tokens // per_step) * world.message_s


def total_s(
    world: World, drafts: Drafts, responses: int, costs: LookupCosts | None = None, num_tokens: int = 100
) -> float:
    costs = costs or LookupCosts()
    return sum(respond(world, costs, drafts, num_tokens).seconds for _ in range(responses))


@pytest.mark.parametrize("drafts", [NEVER, WRONG])
@pytest.mark.parametrize("world", [World(), World(message_s=0.01), World(forward_s=0.2)])
def test_drafts_that_gain_nothing_cost_little(drafts: Drafts, world: World) -> None:
    costs = LookupCosts()
    total_s(world, drafts, 10, costs)
    assert total_s(world, drafts, 50, costs, 400) < 1.05 * 50 * alone(world, 400)


@pytest.mark.parametrize("world", [World(), World(message_s=0.01), World(forward_s=0.2)])
def test_drafts_that_fit_are_all_used(world: World) -> None:
    ideal_s = 100 / 16 * (1.5 * world.message_s + world.forward_s + 15 * world.row_s)
    assert total_s(world, ALWAYS, 50) < 1.2 * 50 * ideal_s < 0.5 * 50 * alone(world)


def test_short_drafts_of_a_fast_target_are_left_out_and_long_ones_used() -> None:
    world, rng = World(message_s=0.01, forward_s=0.004), random.Random(1)

    def mixed(position: int) -> tuple[int, int]:
        return (15, 15) if rng.random() < 0.5 else (1, 1)

    assert total_s(world, mixed, 200) < 0.85 * 200 * alone(world)


def test_short_steps_between_drafts_are_part_of_their_cost() -> None:
    world, rng = World(message_s=0.0024, forward_s=0.004, short_step=1.4), random.Random(1)
    costs = LookupCosts()

    def sometimes(position: int) -> tuple[int, int]:
        return (5, 4) if rng.random() < 0.2 else (0, 0)

    total_s(world, sometimes, 30, costs)
    assert total_s(world, sometimes, 100, costs) < 1.04 * 100 * alone(world)


def test_a_slow_target_is_offered_a_draft_for_every_token() -> None:
    world = World(forward_s=0.2)
    totals = respond(world, LookupCosts(), NEVER)
    assert totals.requests > 50


def test_text_that_never_repeats_costs_few_requests() -> None:
    costs = LookupCosts()
    assert [respond(World(), costs, NEVER, 1000).requests for _ in range(3)][-1] < 20


def test_responses_that_become_worth_it_are_noticed() -> None:
    world, costs = World(), LookupCosts()
    total_s(world, WRONG, 50, costs)
    assert total_s(world, ALWAYS, 30, costs) < 0.5 * 30 * alone(world)


def test_one_good_draft_is_enough_after_many_bad_responses() -> None:
    world, costs = World(short_step=1.4), LookupCosts()
    total_s(world, WRONG, 100, costs)
    assert respond(world, costs, ALWAYS).requests > 5


def test_drafts_that_become_worthless_are_noticed() -> None:
    world, costs = World(), LookupCosts()
    total_s(world, ALWAYS, 50, costs)
    total_s(world, WRONG, 10, costs)
    assert total_s(world, WRONG, 50, costs) < 1.06 * 50 * alone(world)


def test_one_response_may_differ_from_the_others() -> None:
    world, costs = World(), LookupCosts()
    for _ in range(50):
        respond(world, costs, WRONG, 400)
        found = respond(world, costs, ALWAYS, 400)
    assert found.seconds < 0.6 * alone(world, 400)


def test_a_target_that_becomes_slower_is_measured_again() -> None:
    costs, drafts = LookupCosts(), (lambda position: (3, 2))
    total_s(World(message_s=0.02), drafts, 30, costs)
    slow = World(message_s=0.001, forward_s=0.02)
    total_s(slow, drafts, 30, costs)
    assert total_s(slow, drafts, 30, costs) < 0.6 * 30 * alone(slow)
