"""The tau from which speculation pays, and the rule that ends drafts: by measured costs, and by load."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.break_even import BreakEven, allowed_length, break_even, can_pay
from flyserve.core.messages import ForwardCosts, ModelInfo, Role

TARGET = ModelInfo(
    Role.TARGET, "big", "w", "a", "t", 100, 64, "float32", 1, 0, "", costs=ForwardCosts(0.010, 0.025)
)
DRAFTER = replace(TARGET, role=Role.DRAFTER, costs=ForwardCosts(0.001, 0.002))


def found(draft_length: int, target: ModelInfo = TARGET, drafter: ModelInfo | None = DRAFTER) -> BreakEven:
    result = break_even(target, drafter, draft_length)
    assert result is not None
    return result


def test_a_round_must_emit_what_its_costs_would_decode() -> None:
    whole = found(15)
    assert (whole.draft_s, whole.verify_s, whole.tau) == pytest.approx((0.015, 0.025, 4.0))
    assert found(5).tau == pytest.approx((0.005 + 0.015) / 0.010) and whole.can_pay
    said = "more than 4.0 tokens (its tau): a draft of 15 takes 15 ms, its verification 25 ms"
    assert said in whole.describe()


def test_a_slow_drafter_cannot_pay_at_any_tau() -> None:
    slow = found(15, drafter=replace(DRAFTER, costs=ForwardCosts(0.010, 0.010)))
    assert slow.tau == pytest.approx(17.5) and not slow.can_pay
    said = "cannot pay: a round would have to emit 17.5 tokens (its tau), but emits at most 16"
    assert said in slow.describe()
    assert "engine suffix" in slow.describe()
    # Its drafts are still requested: with drafting ahead they may pay, and the costs may be off.
    assert can_pay(TARGET, replace(DRAFTER, costs=ForwardCosts(0.010, 0.010)), 15)
    assert "decoded without drafts" not in slow.describe()
    hopeless = replace(DRAFTER, costs=ForwardCosts(0.016, 0.016))
    assert (
        not can_pay(TARGET, hopeless, 15)
        and "decoded without drafts" in found(15, drafter=hopeless).describe()
    )


def test_nothing_is_said_without_the_costs() -> None:
    unknown = replace(TARGET, costs=None)
    assert break_even(unknown, DRAFTER, 15) is break_even(TARGET, unknown, 15) is None
    assert (
        break_even(TARGET, None, 15)
        is break_even(None, DRAFTER, 15)
        is break_even(TARGET, DRAFTER, 0)
        is None
    )


costs_st = st.floats(1e-6, 10)


@given(costs_st, costs_st, costs_st, st.integers(1, 64))
def test_drafting_is_never_free(decode_s: float, verify_s: float, draft_s: float, length: int) -> None:
    target = replace(TARGET, costs=ForwardCosts(decode_s, verify_s))
    result = found(length, target, replace(DRAFTER, costs=ForwardCosts(draft_s, draft_s)))
    assert result.tau > 1 and result.verify_s >= decode_s


@given(costs_st, costs_st, costs_st, st.integers(1, 64))
def test_drafts_end_only_if_all_their_tokens_together_cost_much_more_than_they_save(
    decode_s: float, verify_s: float, draft_s: float, length: int
) -> None:
    target = replace(TARGET, costs=ForwardCosts(decode_s, verify_s))
    drafter = replace(DRAFTER, costs=ForwardCosts(draft_s, draft_s))
    whole = found(length, target, drafter)
    saved_s = 1.5 * (length + 1) * decode_s - whole.draft_s - whole.verify_s
    if abs(saved_s) > 1e-9 * (whole.draft_s + whole.verify_s):
        assert can_pay(target, drafter, length) is (saved_s > 0)
    assert can_pay(target, replace(drafter, weight_fingerprint=""), length), "judged by what it saves"
    assert can_pay(target, replace(drafter, costs=None), length) and can_pay(target, drafter, 0)


@given(st.integers(0, 64), st.integers(0, 5000), st.none() | st.integers(1, 5000))
def test_drafts_have_their_length_up_to_a_number_of_sequences_and_end_above(
    length: int, open_sequences: int, most: int | None
) -> None:
    is_busy = most is not None and open_sequences > most
    assert allowed_length(length, open_sequences, most) == (0 if is_busy else length)
