"""Patience: a wait for a draft is never longer than the time that the draft saves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.messages import Draft, StepTimes
from flyserve.core.round_record import ArrivedDraft, DraftOrigin, RoundRecord
from flyserve.core.types import Decision, SparseDistribution
from router.generation.drafts.drafter_session import cut_draft
from router.generation.drafts.patience import Patience


def round_of(num_confirmed: int, num_accepted: int | None, origin: DraftOrigin) -> RoundRecord:
    """Return a round with a draft of 8 tokens; without `num_accepted` nothing of it was left to verify."""
    whole = Draft(1, tuple(range(8)))
    left = cut_draft(whole, num_confirmed, 8) if num_accepted is not None else Draft(1, ())
    return RoundRecord(
        is_last=False,
        decision=Decision(()),
        started_s=0.0,
        answered_s=0.1,
        answer_s=0.1,
        times=StepTimes(),
        origin=origin,
        drafts=left.tokens,
        num_accepted=num_accepted or 0,
        arrived=(ArrivedDraft(left, whole, num_confirmed),),
    )


def used(num_confirmed: int, num_accepted: int) -> RoundRecord:
    return round_of(num_confirmed, num_accepted, DraftOrigin.DRAFTER)


def dropped() -> RoundRecord:
    return round_of(0, None, DraftOrigin.NONE)


def test_a_draft_is_waited_for_as_long_as_its_accepted_tokens_would_take() -> None:
    patience = Patience(1.0)
    for _ in range(50):
        patience.record(used(0, 6))
    assert patience.limit_s(0.02, 0.05, 15) == pytest.approx(0.12)
    assert patience.limit_s(0.02, 0.05, 3) == pytest.approx(0.06), "a short draft saves less"
    assert patience.limit_s(0.02, 0.2, 15) == 0, "a draft that always comes too late is not waited for"


def test_a_draft_of_no_use_is_waited_for_one_verification() -> None:
    patience = Patience(1.0)
    for _ in range(200):
        patience.record(dropped())
    assert patience.limit_s(0.02, 0.01, 15) == pytest.approx(0.02)


def test_tokens_that_were_decided_before_a_late_draft_came_count_as_accepted() -> None:
    patience = Patience(1.0)
    for _ in range(100):
        patience.record(used(3, 2))
        patience.record(round_of(3, 1, DraftOrigin.PREDICTION))  # says nothing about the drafter
    assert patience.limit_s(1.0, 0.0, 15) == pytest.approx(5.0)


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.integers(0, 10), st.integers(0, 10))
def test_what_is_left_of_a_draft_is_consistent(
    length: int, ahead: int, supplied: int, start: int, most: int
) -> None:
    ahead, supplied, start = min(ahead, length), min(supplied, length), min(start, length)
    distributions = tuple(SparseDistribution((token,), (1.0,)) for token in range(length))
    draft = Draft(1, tuple(range(length)), 3, supplied, distributions=distributions, drafted_ahead=ahead)
    left = cut_draft(draft, start, most)
    assert left.tokens == tuple(range(length))[start : start + most]
    assert tuple(each.ids[0] for each in left.distributions) == left.tokens
    assert left.drafted_ahead == sum(token < ahead for token in left.tokens)
    assert left.drafted_ahead + left.dropped_ahead == ahead and left.forwards == 3
    assert left.sub_drafter_tokens <= len(left.tokens)
