"""The golden cases of the rule, and properties that hold for every rule."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.presets import EXACT, PRESETS
from flyserve.core.rule import decide
from flyserve.core.sequence import common_length
from flyserve.core.types import (
    Evidence,
    FlyRule,
    Position,
    RejectionReason,
    ResponseLimits,
    RuleState,
    Verdict,
)

LIMITS = ResponseLimits(max_new_tokens=1000, ending_ids=frozenset({2}))
EXTRA = 99
GUARD = RejectionReason.GUARD


def evidence(num_drafts: int, mismatches: set[int], entropy: float = 1.0) -> Evidence:
    positions = (
        Position(token=10 + j, choice=50 if j in mismatches else 10 + j, entropy=entropy, logprob_gap=0.4)
        for j in range(num_drafts)
    )
    return Evidence(tuple(positions), EXTRA, 0.0)


def verdicts(rule: FlyRule, num_drafts: int, mismatches: set[int]) -> list[Verdict]:
    _, decision = decide(rule, RuleState(), evidence(num_drafts, mismatches), LIMITS)
    return [decided.verdict for decided in decision.decided]


@pytest.mark.parametrize("preset", ["official", "vllm", "paper"])
@pytest.mark.parametrize("mismatch", range(15))
def test_one_mismatch_of_fifteen_is_rescued_up_to_position_8(preset: str, mismatch: int) -> None:
    result = verdicts(PRESETS[preset], 15, {mismatch})
    if mismatch <= 8:
        expected = [Verdict.EXACT] * 15 + [Verdict.BONUS]
        expected[mismatch] = Verdict.RESCUED
    else:
        expected = [Verdict.EXACT] * mismatch + [Verdict.CORRECTED]
    assert result == expected


@pytest.mark.parametrize("preset", ["official", "vllm", "paper"])
@pytest.mark.parametrize("distance", range(1, 6))
def test_the_first_of_two_near_mismatches_is_rejected(preset: str, distance: int) -> None:
    assert verdicts(PRESETS[preset], 15, {1, 1 + distance}) == [Verdict.EXACT, Verdict.CORRECTED]


def test_the_presets_differ_for_mismatches_six_apart() -> None:
    assert verdicts(PRESETS["official"], 15, {1, 7}).count(Verdict.RESCUED) == 2
    assert verdicts(PRESETS["vllm"], 15, {1, 7}) == [Verdict.EXACT, Verdict.CORRECTED]
    assert verdicts(PRESETS["paper"], 15, {1, 7}) == [Verdict.EXACT, Verdict.CORRECTED]


@pytest.mark.parametrize("preset", ["official", "vllm", "paper"])
def test_mismatches_seven_apart_have_windows_of_their_own(preset: str) -> None:
    assert verdicts(PRESETS[preset], 15, {0, 7}).count(Verdict.RESCUED) == 2


@pytest.mark.parametrize("num_drafts", range(1, 7))
def test_official_rescues_nothing_in_short_drafts(num_drafts: int) -> None:
    assert verdicts(PRESETS["official"], num_drafts, {0}) == [Verdict.CORRECTED]


@pytest.mark.parametrize(("num_drafts", "rescued"), [(1, False), (2, True), (4, True), (6, True)])
def test_vllm_shrinks_its_window_for_short_drafts(num_drafts: int, rescued: bool) -> None:
    assert (Verdict.RESCUED in verdicts(PRESETS["vllm"], num_drafts, {0})) is rescued


@pytest.mark.parametrize(
    ("entropy", "verdict"),
    [
        (0.3, Verdict.RESCUED),
        (math.nextafter(0.3, 1), Verdict.RESCUED),
        (math.nextafter(0.3, 0), Verdict.CORRECTED),
        (0.0, Verdict.CORRECTED),
        (math.nan, Verdict.CORRECTED),
    ],
)
def test_the_entropy_gate_opens_at_exactly_its_threshold(entropy: float, verdict: Verdict) -> None:
    assert PRESETS["official"].threshold == 0.3
    _, decision = decide(PRESETS["official"], RuleState(), evidence(15, {3}, entropy), LIMITS)
    assert decision.decided[3].verdict is verdict
    if verdict is Verdict.CORRECTED:
        assert decision.rejection is RejectionReason.GATE and decision.decided[-1].id == 50


def test_every_rejection_has_its_reason() -> None:
    def rejection(rule: FlyRule, given: Evidence) -> RejectionReason | None:
        return decide(rule, RuleState(), given, LIMITS)[1].rejection

    rule = PRESETS["vllm"]
    assert rejection(rule, evidence(15, set())) is None
    assert rejection(rule, evidence(15, {1, 3})) is RejectionReason.WINDOW
    assert rejection(rule, evidence(15, {12})) is RejectionReason.TAIL
    assert rejection(EXACT, evidence(15, {1})) is RejectionReason.EXACT
    excluded = Evidence((Position(1, 3, 1.0, excluded=True), *evidence(14, set()).positions), EXTRA, 0.0)
    assert rejection(rule, excluded) is RejectionReason.GUARD


def test_guarded_stops_are_neither_rescued_nor_overruled_nor_inside_a_window() -> None:
    rule = replace(PRESETS["official"], guard_stops=True)
    rest = evidence(15, set()).positions
    cases = [
        (Position(2, 5, 1.0), *rest[1:]),  # the draft stops, the target continues
        (Position(5, 2, 1.0), *rest[1:]),  # the target stops, the draft continues
        (Position(5, 6, 1.0), rest[1], Position(2, 2, 1.0), *rest[3:]),  # a stop inside the window
    ]
    for positions in cases:
        _, decision = decide(rule, RuleState(), Evidence(positions, EXTRA, 0.0), LIMITS)
        assert decision.rejection is RejectionReason.GUARD
        assert [decided.verdict for decided in decision.decided] == [Verdict.CORRECTED]


def test_the_first_tokens_of_a_response_are_exact() -> None:
    rule = replace(PRESETS["official"], strict_prefix_tokens=2)
    _, early = decide(rule, RuleState(), evidence(15, {1}), LIMITS)
    _, later = decide(rule, RuleState(num_decided=1), evidence(15, {1}), LIMITS)
    assert early.rejection is RejectionReason.GUARD
    assert later.rejection is None


@pytest.mark.parametrize(("gap", "expected"), [(1.5, None), (1.6, GUARD), (math.nan, GUARD), (-2.0, None)])
def test_a_mismatch_that_the_target_finds_too_unlikely_is_rejected(
    gap: float, expected: RejectionReason | None
) -> None:
    rest = evidence(15, set()).positions[1:]
    found = Evidence((Position(1, 3, 1.0, logprob_gap=gap), *rest), EXTRA, 0.0)
    limited = replace(PRESETS["official"], max_logprob_gap=1.5)
    for rule, reason in ((limited, expected), (PRESETS["official"], None)):
        _, decision = decide(rule, RuleState(), found, LIMITS)
        assert decision.rejection is reason


positions_st = st.builds(
    Position,
    token=st.integers(3, 6),
    choice=st.integers(3, 6),
    entropy=st.floats(0, 1.1),
    excluded=st.booleans(),
)
evidence_st = st.builds(
    Evidence, st.lists(positions_st, max_size=20).map(tuple), st.integers(3, 6), st.floats(0, 1.1)
)
presets_st = st.sampled_from(sorted(PRESETS)).map(PRESETS.__getitem__)


@given(presets_st, evidence_st, st.sampled_from(["threshold", "window"]))
def test_an_infinite_threshold_or_window_makes_it_exact(
    rule: FlyRule, given_: Evidence, infinite: str
) -> None:
    changed = replace(rule, shrinks=False)
    if infinite == "threshold":
        changed = replace(changed, threshold=math.inf)
    else:
        changed = replace(changed, window=10**9, min_following=10**9)
    _, decision = decide(changed, RuleState(), given_, LIMITS)
    drafts = [position.token for position in given_.positions]
    choices = [*(position.choice for position in given_.positions), given_.extra_choice]
    matched = common_length(drafts, choices)
    assert [decided.id for decided in decision.decided] == [*drafts[:matched], choices[matched]]


@given(presets_st, evidence_st)
def test_a_rescue_is_uncertain_and_followed_by_its_window(rule: FlyRule, given_: Evidence) -> None:
    _, decision = decide(rule, RuleState(), given_, LIMITS)
    window = min(rule.window, max(1, len(given_.positions) - 1)) if rule.shrinks else rule.window
    for index, decided in enumerate(decision.decided):
        if decided.verdict is Verdict.RESCUED:
            assert decided.entropy >= rule.threshold
            following = given_.positions[index + 1 : index + 1 + window]
            assert len(following) == window
            assert all(position.is_match for position in following)


@given(presets_st, evidence_st)
def test_every_round_emits_a_prefix_of_the_draft_and_one_choice(rule: FlyRule, given_: Evidence) -> None:
    _, decision = decide(rule, RuleState(), given_, LIMITS)
    drafts = tuple(position.token for position in given_.positions)
    if decision.provisional:
        kept = tuple(decided.id for decided in decision.decided)
        assert kept + decision.provisional == (*drafts, given_.extra_choice), "an open window holds the rest"
        return
    *kept_drafts, last = decision.decided
    assert tuple(decided.id for decided in kept_drafts) == drafts[: len(kept_drafts)]
    assert last.id == last.choice
    assert last.verdict in {Verdict.CORRECTED, Verdict.BONUS, Verdict.PLAIN}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_strict_position_is_never_rescued(preset: str) -> None:
    found = evidence(15, {4})
    assert verdicts(PRESETS[preset], 15, {4})[4] is Verdict.RESCUED
    positions = tuple(position._replace(is_strict=True) for position in found.positions)
    _, decision = decide(PRESETS[preset], RuleState(), replace(found, positions=positions), LIMITS)
    assert [each.verdict for each in decision.decided] == [Verdict.EXACT] * 4 + [Verdict.CORRECTED]
    assert decision.rejection is RejectionReason.GUARD
