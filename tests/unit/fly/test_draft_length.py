"""The statistics that choose a draft length: acceptance, forward times, corrections, invalid values."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fly.comparison import Turn
from fly.costs import CostCurve
from fly.draft_length.acceptance import Acceptance, AcceptancePool, PendingAcceptance
from fly.draft_length.draft_gain import DraftGain
from fly.draft_length.exploration import Exploration
from fly.draft_length.goodput import GoodputLength
from fly.draft_length.policy import DraftLength, FixedLength
from fly.draft_length.round_time import RoundTimes
from fly.messages import Draft, Load, StepTimes, Verification
from fly.presets import EXACT, PRESETS
from fly.rule import tail_length
from tests.support.clock import VirtualClock

SECONDS = st.floats(0, 1e3) | st.sampled_from([math.inf, math.nan, -1.0])


@given(st.lists(st.tuples(st.integers(1, 15), st.integers(0, 15)), max_size=60), st.integers(0, 6))
def test_a_longer_draft_never_has_fewer_expected_tokens_without_a_tail(
    rounds: list[tuple[int, int]], factor_rounds: int
) -> None:
    pool = AcceptancePool(15)
    own = Acceptance(pool)
    for index, (length, accepted) in enumerate(rounds):
        (own if index % 7 < factor_rounds else Acceptance(pool)).observe(length, min(length, accepted))
    tokens = own.expected_tokens()
    assert tokens[0] == 1.0 and all(a <= b for a, b in pairwise(tokens))
    assert all(1 <= count <= length + 1 for length, count in enumerate(tokens))


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_expected_tokens_converge_to_the_accepted_tokens(accepted: int) -> None:
    own = Acceptance(AcceptancePool(8))
    for _ in range(400):
        own.observe(6, accepted)
    assert own.expected_tokens()[6] == pytest.approx(1 + accepted, abs=0.25)


def test_a_new_sequence_starts_with_the_pools_rates_and_then_learns_its_own() -> None:
    pool = AcceptancePool(8)
    for _ in range(200):
        Acceptance(pool).observe(8, 1, num_sequences=8)
    unlike, like = Acceptance(pool), Acceptance(pool)
    assert unlike.expected_tokens() == like.expected_tokens()
    for _ in range(20):
        unlike.observe(8, 8, num_sequences=8)
    assert unlike.expected_tokens()[8] > like.expected_tokens()[8] + 0.2


def test_a_short_draft_is_not_credited_with_tokens_that_only_a_long_one_can_rescue() -> None:
    """Under a rule with a window of 6, every mismatch before the tail is rescued and none in the tail."""
    pool = AcceptancePool(15, lambda length: tail_length(PRESETS["paper"], length))
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
def test_the_tail_is_the_part_that_the_rule_cannot_rescue(rule: object, drafts: int, tail: int) -> None:
    assert tail_length(rule, drafts) == tail  # type: ignore[arg-type]


def test_carried_drafts_count_when_their_window_is_decided() -> None:
    open_window = PendingAcceptance()
    open_window.add(10, 6)
    assert open_window.settle(decided_length=13, is_open=True) == []
    open_window.add(17, 6)
    held = PendingAcceptance()
    held.add(10, 6)
    held.add(17, 6)
    assert open_window.settle(decided_length=14, is_open=False) == [(6, 3), (6, 0)], "cut at the mismatch"
    assert held.settle(decided_length=24, is_open=False) == [(6, 6), (6, 6)]
    held.add(24, 4)
    assert held.settle(decided_length=28, is_open=True) == [(4, 4)]
    assert held.settle(decided_length=28, is_open=False) == []


def seen(*forwards: tuple[float, float], extrapolates: bool = True) -> CostCurve:
    curve = CostCurve(VirtualClock(), extrapolates)
    for size, seconds in forwards * 20:
        curve.observe(size, seconds)
    return curve


def test_costs_are_measured_at_observed_sizes_and_linear_between_them() -> None:
    curve = seen((4, 1.0), (8, 2.0), (64, 2.0), (128, 4.0))
    assert curve.estimate(6) == pytest.approx(1.5, rel=0.05)
    assert curve.estimate(36) == pytest.approx(2.0, rel=0.05)
    assert curve.estimate(256) == pytest.approx(8.0, rel=0.05), "as steep as before"
    assert seen((4, 1.0), (8, 2.0), extrapolates=False).estimate(16) == pytest.approx(2.0, rel=0.05)
    assert CostCurve(VirtualClock()).estimate(7) == 0.0


def test_a_single_delayed_forward_hardly_counts() -> None:
    curve = seen((8, 1.0), (16, 1.0))
    curve.observe(12, 50.0)
    assert curve.estimate(12) == pytest.approx(1.0, rel=0.01)


def test_a_size_that_was_not_observed_for_long_is_forgotten() -> None:
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


def record_rounds(times: RoundTimes, length: int, sequences: int, ratio: float) -> None:
    """Record 100 rounds that take `ratio` times their estimate before any was recorded."""
    load, waits = Load(sequences=sequences), StepTimes(0, 10_000_000, sequences, 16)
    for _ in range(sequences):
        times.record_verification(Verification(0, (0,), (0.0,), times=waits, load=load), 0.01)
    usual_s = times.round_s(length)
    for _ in range(100 * sequences):
        times.record_round(length, times.round_s(length), ratio * usual_s)


@pytest.mark.parametrize(("ratio", "learnt"), [(0.8, 1.0), (1.3, 1.3)])
def test_rounds_longer_than_the_estimate_are_corrected_while_their_length_is_in_use(
    ratio: float, learnt: float
) -> None:
    times, fresh = RoundTimes(VirtualClock()), RoundTimes(VirtualClock())
    record_rounds(fresh, 0, 2, 1.0)
    record_rounds(times, 4, 2, ratio)
    assert times.round_s(4) == pytest.approx(learnt * fresh.round_s(4), rel=0.06)
    assert times.round_s(5) == pytest.approx(fresh.round_s(5))
    record_rounds(times, 0, 2, 1.0)
    assert times.round_s(4) == pytest.approx(fresh.round_s(4), rel=0.08)


def test_a_lone_sequence_has_one_correction_for_all_its_drafts() -> None:
    """Otherwise the length in use would look dearer than its neighbours, in turn."""
    times, fresh = RoundTimes(VirtualClock()), RoundTimes(VirtualClock())
    record_rounds(fresh, 0, 1, 1.0)
    record_rounds(times, 9, 1, 1.3)
    factors = [times.round_s(length) / fresh.round_s(length) for length in (0, 1, 8, 9, 15)]
    assert factors == [1.0] + [pytest.approx(1.3, rel=0.06)] * 4


def test_exploration_waits_until_its_cost_is_earned() -> None:
    budget = Exploration()
    assert not budget.try_begin(is_plain=True)
    for _ in range(32):
        budget.record_usual(1, 0.01)
    assert (
        not budget.try_begin(is_plain=False)
        and budget.try_begin(is_plain=True)
        and not budget.try_begin(is_plain=True)
    )
    budget.record(spent_s=0.02, usual_s=0.01)
    rounds = 0
    while not budget.try_begin(is_plain=True):
        budget.record_usual(1, 0.01)
        rounds += 1
    assert rounds >= 120, "0.01 s lost are 0.75% of more than 120 rounds"
    budget.record(spent_s=0.01, usual_s=0.02)
    assert budget.try_begin(is_plain=True), "a profitable exploration may be repeated at once"


def test_exploring_pays_for_what_others_waited() -> None:
    budget = Exploration()
    budget.record(spent_s=0.03, usual_s=0.0)
    rounds = 0
    while not budget.try_begin(is_plain=True):
        budget.record_usual(1, 0.01)
        rounds += 1
    assert rounds == pytest.approx(400, abs=1), "0.03 s are 0.75% of 400 rounds"


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


@given(st.integers(1, 20), ROUNDS)
def test_the_length_stays_in_its_range_for_any_observation(max_length: int, rounds: list[tuple]) -> None:
    clock = VirtualClock()
    pool = AcceptancePool(max_length, lambda length: min(6, length))
    gain = DraftGain(Turn())
    policy = GoodputLength(pool, RoundTimes(clock), Exploration(), gain, clock)
    position = 5
    for queue_ns, forward_ns, batch, sequences, kept, is_open, draft_s, verify_s in rounds:
        length = policy.choose()
        assert 0 <= length <= max_length
        times, load = StepTimes(queue_ns, forward_ns, batch, batch * 3), Load(sequences=sequences)
        num_drafts = min(length, kept)
        policy.record_draft(Draft(0, (1,) * num_drafts, forwards=batch % 4, times=times, load=load), draft_s)
        zeros = (0,) * (num_drafts + 1)
        policy.record_verification(Verification(0, zeros, zeros, times=times, load=load), verify_s)
        clock.advance(forward_ns * 1e-9)
        position += kept % (num_drafts + 1) + 1
        policy.record_round(position - 1, num_drafts, position, is_open)
    assert all(math.isfinite(each) for each in pool.rejections)
    assert 0 <= policy.choose() <= max_length


def test_a_size_that_is_cheaper_than_estimated_is_corrected_at_once() -> None:
    curve = seen((2, 0.5), (4, 1.0), (8, 2.0))
    assert curve.estimate(64) > 9
    curve.observe(64, 2.0)
    assert curve.estimate(64) == pytest.approx(2.0, rel=0.05)


@dataclass
class LoneSequence:
    """Sequences one after the other: a step costs a message, and has several tokens without a draft.

    Attributes:
        policy: Makes the policy of a response.
        agreement: Probability that a draft token is accepted.
        first_forward_s: Seconds by which the first forward of a draft is slower than the others.
        num_cold: First drafts whose forwards take four times as long.
        response_tokens: Tokens of a response.
        most_steps: Most tokens of a step without a draft.
    """

    clock: VirtualClock
    policy: Callable[[], DraftLength]
    agreement: float
    first_forward_s: float = 0.0
    num_cold: int = 0
    response_tokens: float = math.inf
    most_steps: int = 20
    lengths: list[int] = field(default_factory=list)
    tokens: int = 0

    def speed(self, num_responses: int) -> float:
        """Return the tokens per second of further responses, or of one for so many rounds."""
        tokens, begin_s = self.tokens, self.clock.now()
        self.run(num_responses)
        return (self.tokens - tokens) / (self.clock.now() - begin_s)

    def run(self, number: int) -> None:
        """Decode a number of responses; if they have no end, one with as many rounds."""
        if self.response_tokens == math.inf:
            self._respond(number)
            return
        for _ in range(number):
            self._respond(sys.maxsize)

    def _respond(self, num_rounds: int, message_s: float = 0.004, forward_s: float = 0.002) -> None:
        random, policy = Random(len(self.lengths)), self.policy()
        start = self.tokens
        for _ in range(num_rounds):
            length = policy.choose()
            assert length or not policy.is_exploring, "nothing waits for a draft that was not requested"
            self.lengths.append(length)
            drafting_s = length * 3e-4 + (length > 0) * self.first_forward_s
            if length:
                self.num_cold -= 1
                drafting_s *= 4 if self.num_cold >= 0 else 1
                self.clock.advance(drafting_s)
                times = StepTimes(0, int(drafting_s * 1e9), 1, length)
                policy.record_draft(Draft(0, (1,) * length, length, times=times), drafting_s)
            left = start + self.response_tokens - self.tokens
            num_steps = 1 if length else int(min(self.most_steps, policy.most_steps, left))
            verified_s = num_steps * forward_s + message_s
            self.clock.advance(verified_s)
            times = StepTimes(0, int(num_steps * forward_s * 1e9), 1, length + 1)
            zeros = (0,) * (length + num_steps)
            policy.record_verification(Verification(0, zeros, zeros, times=times), verified_s, num_steps)
            accepted = next((n for n in range(length) if random.random() >= self.agreement), length)
            begin, grown = self.tokens, accepted + num_steps
            self.tokens += grown
            if self.tokens >= start + self.response_tokens:
                return
            policy.record_round(begin, length, begin + grown, is_open=False)


def lone_sequence(agreement: float, **changes: float) -> LoneSequence:
    clock = VirtualClock()
    pool, times, budget = AcceptancePool(15), RoundTimes(clock), Exploration()
    gain = DraftGain(Turn())
    return LoneSequence(
        clock,
        lambda: GoodputLength(pool, times, budget, gain, clock),
        agreement,
        **changes,  # type: ignore[arg-type]
    )


def test_drafts_end_where_the_target_decodes_faster_with_one_message_for_many_tokens() -> None:
    """A draft of 4 gives 2.3 tokens in 7.2 ms: more than one token per message, less than 20 in 44 ms."""
    sequence = lone_sequence(agreement=0.6)
    sequence.run(500)
    assert sequence.speed(500) > 0.98 * 20 / 0.044


def test_plain_decoding_is_tried_now_and_then_where_drafts_pay() -> None:
    sequence = lone_sequence(agreement=0.97)
    sequence.run(500)
    assert sequence.lengths[1:].count(0) > 0
    fixed = LoneSequence(VirtualClock(), lambda: FixedLength(15), agreement=0.97)
    fixed.run(500)
    assert sequence.speed(5000) > 0.99 * fixed.speed(5000)


def test_a_slow_first_forward_of_a_draft_does_not_make_long_drafts_look_slow() -> None:
    """A long draft pays for its first forward as a short one does."""
    sequence = lone_sequence(agreement=0.93, first_forward_s=0.004)
    sequence.run(1500)
    late = sequence.lengths[700:]
    assert sum(late) / len(late) > 13


@pytest.mark.parametrize("response_tokens", [30, 192, 2000])
def test_drafts_are_used_again_after_their_first_ones_were_slow(response_tokens: int) -> None:
    """The first drafts after a start may take several times as long as all others."""
    ways: dict[str, Any] = {"num_cold": 6, "response_tokens": response_tokens, "most_steps": 10_000}
    sequence = lone_sequence(agreement=0.97, **ways)
    sequence.run(20_000 // response_tokens)
    fixed = LoneSequence(VirtualClock(), lambda: FixedLength(15), agreement=0.97, **ways)
    fixed.run(6)
    number = 60_000 // response_tokens
    assert sequence.speed(number) > 0.97 * fixed.speed(number)


def test_steps_of_many_tokens_while_no_drafter_is_available_count_as_so_many() -> None:
    clock = VirtualClock()
    times = RoundTimes(clock)
    gain = DraftGain(Turn())
    policy = GoodputLength(AcceptancePool(15), times, Exploration(), gain, clock)
    for position in range(0, 100, 20):
        assert policy.choose()
        clock.advance(0.042)
        step = Verification(0, (0,) * 20, (), times=StepTimes(0, 40_000_000, 1, 1))
        policy.record_verification(step, 0.042, num_steps=20)
        policy.record_round(position, 0, position + 20, is_open=False)
    assert times.round_s(0) == pytest.approx(0.0021, rel=0.1)


def test_trying_drafts_that_do_not_pay_costs_a_small_share_of_the_time() -> None:
    ways: dict[str, Any] = {"response_tokens": 192, "most_steps": 10_000}
    sequence = lone_sequence(agreement=0.2, **ways)
    sequence.run(100)
    fixed = LoneSequence(VirtualClock(), lambda: FixedLength(0), agreement=0.2, **ways)
    number = 400
    assert sequence.speed(number) > 0.98 * fixed.speed(number)
