"""What the draft length is chosen from: kept drafts, forwards, misfits; and that nonsense does no harm."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fly.clock import VirtualClock
from fly.costs import CostCurve
from fly.draft_length.acceptance import Acceptance, KeptDrafts, SurvivalPool
from fly.draft_length.goodput import GoodputLength
from fly.draft_length.load import RoundCosts
from fly.draft_length.misfit import Misfits
from fly.draft_length.policy import FixedLength
from fly.draft_length.trials import TrialBudget
from fly.messages import Draft, Load, StepTimes, Verification
from fly.presets import EXACT, PRESETS
from fly.rule import tail_length

SECONDS = st.floats(0, 1e3) | st.sampled_from([math.inf, math.nan, -1.0])


@given(st.lists(st.tuples(st.integers(1, 15), st.integers(0, 15)), max_size=60), st.integers(0, 6))
def test_a_longer_draft_never_promises_fewer_tokens_where_nothing_is_cut(
    rounds: list[tuple[int, int]], factor_rounds: int
) -> None:
    pool = SurvivalPool(15)
    own = Acceptance(pool)
    for index, (length, kept) in enumerate(rounds):
        (own if index % 7 < factor_rounds else Acceptance(pool)).observe(length, min(length, kept))
    tokens = own.expected_tokens()
    assert tokens[0] == 1.0 and all(a <= b for a, b in pairwise(tokens))
    assert all(1 <= count <= length + 1 for length, count in enumerate(tokens))


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_expected_tokens_become_what_was_kept(kept: int) -> None:
    own = Acceptance(SurvivalPool(8))
    for _ in range(400):
        own.observe(6, kept)
    assert own.expected_tokens()[6] == pytest.approx(1 + kept, abs=0.25)


def test_a_new_sequence_starts_as_the_others_are_and_then_goes_its_own_way() -> None:
    pool = SurvivalPool(8)
    for _ in range(200):
        Acceptance(pool).observe(8, 1, num_sequences=8)
    unlike, like = Acceptance(pool), Acceptance(pool)
    assert unlike.expected_tokens() == like.expected_tokens()
    for _ in range(20):
        unlike.observe(8, 8, num_sequences=8)
    assert unlike.expected_tokens()[8] > like.expected_tokens()[8] + 0.2


def test_a_short_draft_is_not_credited_with_what_only_a_long_one_can_rescue() -> None:
    """Under a rule with a window of 6, everything is rescued that can be; nothing else is kept."""
    pool = SurvivalPool(15, lambda length: tail_length(PRESETS["paper"], length))
    own = Acceptance(pool)
    for _ in range(300):
        own.observe(15, 9)
    tokens = own.expected_tokens()
    assert tokens[15] == pytest.approx(10, abs=1.0)
    assert tokens[6] < 2.2, "all six lie in the tail, where the first is rejected"
    assert tokens[8] < tokens[12] < tokens[15]


@pytest.mark.parametrize(
    ("rule", "drafts", "tail"),
    [
        (EXACT, 15, 0),
        (PRESETS["official"], 15, 6),
        (PRESETS["official"], 4, 4),
        (PRESETS["vllm"], 15, 6),
        (PRESETS["vllm"], 4, 3),
        (PRESETS["vllm"], 1, 1),
        (PRESETS["flyserve"], 15, 2),
        (PRESETS["flyserve"], 0, 0),
        (replace(PRESETS["flyserve"], carry_after=0), 15, 0),
    ],
)
def test_the_tail_is_what_the_rule_cannot_rescue(rule: object, drafts: int, tail: int) -> None:
    assert tail_length(rule, drafts) == tail  # type: ignore[arg-type]


def test_carried_drafts_count_when_their_window_is_decided() -> None:
    kept = KeptDrafts()
    kept.add(10, 6)
    assert kept.settle(decided_length=13, is_open=True) == []
    kept.add(17, 6)
    held = KeptDrafts()
    held.add(10, 6)
    held.add(17, 6)
    assert kept.settle(decided_length=14, is_open=False) == [(6, 3), (6, 0)], "it fell back to the mismatch"
    assert held.settle(decided_length=24, is_open=False) == [(6, 6), (6, 6)]
    held.add(24, 4)
    assert held.settle(decided_length=28, is_open=True) == [(4, 4)]
    assert held.settle(decided_length=28, is_open=False) == []


def seen(*forwards: tuple[float, float], rises: bool = True) -> CostCurve:
    curve = CostCurve(VirtualClock(), rises)
    for size, seconds in forwards * 20:
        curve.observe(size, seconds)
    return curve


def test_costs_are_measured_where_seen_and_straight_in_between() -> None:
    curve = seen((4, 1.0), (8, 2.0), (64, 2.0), (128, 4.0))
    assert curve.estimate(6) == pytest.approx(1.5, rel=0.05)
    assert curve.estimate(36) == pytest.approx(2.0, rel=0.05)
    assert curve.estimate(256) == pytest.approx(8.0, rel=0.05), "as steep as before"
    assert seen((4, 1.0), (8, 2.0), rises=False).estimate(16) == pytest.approx(2.0, rel=0.05)
    assert CostCurve(VirtualClock()).estimate(7) == 0.0


def test_a_forward_that_was_held_up_once_does_not_count_for_much() -> None:
    curve = seen((8, 1.0), (16, 1.0))
    curve.observe(12, 50.0)
    assert curve.estimate(12) == pytest.approx(1.0, rel=0.01)


def test_what_was_not_seen_for_long_is_forgotten() -> None:
    clock = VirtualClock()
    curve = CostCurve(clock)
    curve.observe(100, 9.0)
    clock.advance(100)
    curve.observe(10, 1.0)
    assert curve.estimate(100) < 2


@given(st.lists(st.tuples(st.floats(-1, 2000), SECONDS), max_size=40), st.floats(1, 3000))
def test_a_curve_never_falls_and_is_never_negative(seen: list[tuple[float, float]], size: float) -> None:
    curve = CostCurve(VirtualClock())
    for each, seconds in seen:
        curve.observe(each, seconds)
    low, high = curve.estimate(size), curve.estimate(size * 1.5)
    assert 0 <= low <= high * (1 + 1e-9) < math.inf


def test_rounds_longer_than_explained_count_while_they_are_played() -> None:
    misfits = Misfits()
    for _ in range(100):
        misfits.observe(4, 1, 1.3)
    assert misfits.ratio(4, 1) == pytest.approx(1.3, abs=0.02)
    assert 1.1 < misfits.ratio(5, 1) < 1.2 and misfits.ratio(4, 64) < 1.2
    for _ in range(100):
        misfits.observe(0, 1, 1.0)
    assert misfits.ratio(4, 1) < 1.05


def test_trials_wait_for_what_they_cost() -> None:
    trials = TrialBudget()
    assert not trials.take(is_plain=True)
    for _ in range(32):
        trials.earn(0.01)
    assert not trials.take(is_plain=False) and trials.take(is_plain=True) and not trials.take(is_plain=True)
    trials.pay(cost_s=0.02, worth_s=0.01)
    rounds = 0
    while not trials.take(is_plain=True):
        trials.earn(0.01)
        rounds += 1
    assert rounds >= 60, "0.01 s lost are 1.5% of more than 60 rounds"
    trials.pay(cost_s=0.01, worth_s=0.02)
    assert trials.take(is_plain=True), "one that was worth it may be repeated at once"


def test_a_fixed_length_stays() -> None:
    assert [FixedLength(7).choose() for _ in range(3)] == [7, 7, 7]


COUNTS = st.integers(0, 200)
ROUNDS = st.lists(
    st.tuples(
        st.integers(0, 10**11),
        st.integers(0, 10**11),
        COUNTS,
        COUNTS,
        COUNTS,
        st.booleans(),
        SECONDS,
        SECONDS,
    ),
    max_size=25,
)


@given(st.integers(0, 20), ROUNDS)
def test_whatever_it_is_told_the_length_stays_in_its_range(max_length: int, rounds: list[tuple]) -> None:
    clock = VirtualClock()
    pool = SurvivalPool(max_length, lambda length: min(6, length))
    policy = GoodputLength(pool, RoundCosts(clock), TrialBudget(), clock)
    position = 5
    for queue_ns, forward_ns, batch, sequences, kept, is_open, draft_s, verify_s in rounds:
        length = policy.choose()
        assert 0 <= length <= max_length
        times, load = StepTimes(queue_ns, forward_ns, batch, batch * 3), Load(sequences=sequences)
        num_drafts = min(length, kept)
        policy.drafted(Draft(0, (1,) * num_drafts, forwards=batch % 4, times=times, load=load), draft_s)
        zeros = (0,) * (num_drafts + 1)
        policy.verified(Verification(0, zeros, zeros, times=times, load=load), verify_s)
        clock.advance(forward_ns * 1e-9)
        position += kept % (num_drafts + 1) + 1
        policy.decided(position - 1, num_drafts, position, is_open)
    assert all(math.isfinite(each) for each in pool.rejections)
    assert 0 <= policy.choose() <= max_length


def test_a_size_that_turns_out_cheaper_than_expected_is_believed_at_once() -> None:
    curve = seen((2, 0.5), (4, 1.0), (8, 2.0))
    assert curve.estimate(64) > 9
    curve.observe(64, 2.0)
    assert curve.estimate(64) == pytest.approx(2.0, rel=0.05)
