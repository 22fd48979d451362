"""Windows carried over rounds: provisional tokens, their decision, the fall-back to the target's choice."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.rule import decide
from flyserve.core.types import (
    Decision,
    Evidence,
    FlyRule,
    Position,
    RejectionReason,
    ResponseLimits,
    RuleState,
    TailPolicy,
    Verdict,
)

CARRY = FlyRule(
    threshold=0.3, window=6, min_following=6, tail=TailPolicy.CARRY, carry_after=2, guard_stops=True
)
REJECT = replace(CARRY, tail=TailPolicy.REJECT)
LIMITS = ResponseLimits(1000, frozenset({2}))


def matches(count: int, first: int = 10) -> tuple[Position, ...]:
    return tuple(Position(first + j, first + j, 1.0) for j in range(count))


MISMATCH = Position(70, 71, 1.0)


def test_a_failed_window_falls_back_to_the_choice_at_the_mismatch() -> None:
    state, _ = decide(CARRY, RuleState(), Evidence((MISMATCH, *matches(3)), 99, 0.0), LIMITS)
    state, decision = decide(CARRY, state, Evidence((*matches(1), MISMATCH), 98, 0.0), LIMITS)
    assert [(d.id, d.verdict) for d in decision.decided] == [(71, Verdict.CORRECTED)]
    assert decision.provisional == ()
    assert decision.rejection is RejectionReason.WINDOW
    assert state == RuleState(num_decided=1)


def test_the_bonus_counts_neither_for_nor_against_a_window() -> None:
    state, _ = decide(CARRY, RuleState(), Evidence((MISMATCH, *matches(5)), 99, 0.0), LIMITS)
    assert len(state.provisional) == 7, "five matches and the bonus do not fill a window of six"
    _, not_against = decide(CARRY, state, Evidence(matches(1), 98, 0.0), LIMITS)
    assert not_against.decided[0].verdict is Verdict.RESCUED
    _, not_for = decide(CARRY, state, Evidence((MISMATCH,), 98, 0.0), LIMITS)
    assert [(token.id, token.verdict) for token in not_for.decided] == [(71, Verdict.CORRECTED)]
    assert not_for.rejection is RejectionReason.WINDOW


def test_too_few_matches_are_not_carried() -> None:
    _, decision = decide(CARRY, RuleState(), Evidence((MISMATCH, *matches(1)), 99, 0.0), LIMITS)
    assert decision.rejection is RejectionReason.TAIL


def test_a_window_beyond_the_budget_is_rejected() -> None:
    evidence = Evidence((MISMATCH, *matches(3)), 99, 0.0)
    _, fits = decide(CARRY, RuleState(), evidence, ResponseLimits(9))
    _, beyond = decide(CARRY, RuleState(), evidence, ResponseLimits(8))
    assert fits.rejection is None
    assert beyond.rejection is RejectionReason.TAIL


def test_an_open_window_before_an_ending_token_is_rejected() -> None:
    in_draft = Evidence((MISMATCH, *matches(2), Position(2, 2, 1.0)), 99, 0.0)
    as_bonus = Evidence((MISMATCH, *matches(2)), 2, 0.0)
    for evidence in (in_draft, as_bonus):
        _, decision = decide(CARRY, RuleState(), evidence, LIMITS)
        assert [d.verdict for d in decision.decided] == [Verdict.CORRECTED]


# NOTE: is_bonus is fixed, since hypothesis draws omitted fields of a named tuple, and a draft is no bonus.
positions_st = st.builds(
    Position, st.integers(3, 5), st.integers(3, 5), st.sampled_from([0.0, 1.0]), is_bonus=st.just(False)
)
drafts_st = st.lists(st.lists(positions_st, min_size=1, max_size=10), min_size=1, max_size=6)
rules_st = st.builds(
    lambda window, carry_after, strict: replace(
        CARRY, window=window, min_following=window, carry_after=carry_after, strict_prefix_tokens=strict
    ),
    st.integers(1, 7),
    st.integers(0, 3),
    st.integers(0, 3),
)


def play(rule: FlyRule, drafts: list[list[Position]]) -> list[tuple[RuleState, Decision]]:
    """Run the rounds of one response; after a rejection the next draft continues the correction."""
    state, played = RuleState(), []
    for draft in drafts:
        state, decision = decide(rule, state, Evidence(tuple(draft), 9, 0.0), LIMITS)
        played.append((state, decision))
    return played


@given(rules_st, drafts_st)
def test_a_rescue_is_followed_by_a_full_window(rule: FlyRule, drafts: list[list[Position]]) -> None:
    decided = [token for _, decision in play(rule, drafts) for token in decision.decided]
    for index, token in enumerate(decided):
        if token.verdict is Verdict.RESCUED:
            assert token.entropy >= rule.threshold
            following = [t.verdict for t in decided[index + 1 :] if t.verdict is not Verdict.BONUS]
            assert following[: rule.window] == [Verdict.EXACT] * rule.window


@given(rules_st, st.integers(0, 6), st.lists(positions_st, min_size=1, max_size=12))
def test_evidence_in_parts_decides_as_in_one(rule: FlyRule, num_matches: int, rest: list[Position]) -> None:
    """The cuts do not matter if nothing stands between the parts, that is, without their bonus tokens."""
    rule = replace(rule, carry_after=0, strict_prefix_tokens=0)
    head = (MISMATCH, *matches(min(num_matches, rule.window - 1)))
    state, first = decide(rule, RuleState(), Evidence(head, 9, 0.0), LIMITS)
    without_bonus = replace(state, provisional=state.provisional[:-1])
    pieces = decide(rule, without_bonus, Evidence(tuple(rest), 9, 0.0), LIMITS)
    whole = decide(rule, RuleState(), Evidence((*head, *rest), 9, 0.0), LIMITS)
    assert first.decided == ()
    assert pieces == whole


@given(rules_st, st.lists(positions_st, max_size=16))
def test_carry_and_reject_agree_without_a_mismatch_in_the_tail(rule: FlyRule, draft: list[Position]) -> None:
    draft = [*draft, *matches(rule.window)]
    carried = decide(rule, RuleState(), Evidence(tuple(draft), 9, 0.0), LIMITS)
    rejected = decide(
        replace(rule, tail=TailPolicy.REJECT), RuleState(), Evidence(tuple(draft), 9, 0.0), LIMITS
    )
    assert carried == rejected


@given(rules_st, drafts_st)
def test_a_window_that_is_full_before_it_could_be_carried_is_that_of_tail_reject(
    rule: FlyRule, drafts: list[list[Position]]
) -> None:
    rule = replace(rule, carry_after=rule.window)
    assert play(rule, drafts) == play(replace(rule, tail=TailPolicy.REJECT), drafts)
