"""Acceptance of drafts over a request, in the shape that the tools of the field check."""

from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.response import Chunk, Round
from router.http.accounting import AcceptedDrafts, Accounting


def a_round(drafted: int, accepted: int) -> Round:
    return Round(0, drafted, accepted, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_a_carried_window_counts_for_the_draft_that_it_is_from() -> None:
    drafts = AcceptedDrafts()
    for each in (a_round(15, 9), a_round(15, 19), a_round(0, 2)):
        drafts.add(each)
    assert drafts.lengths == [15, 15] and drafts.accepted == [15, 15]


rounds_st = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), max_size=12)


@given(st.lists(rounds_st, min_size=1, max_size=3))
def test_its_figures_agree_with_each_other(choices: list[list[tuple[int, int]]]) -> None:
    accounting = Accounting()
    for index, rounds in enumerate(choices):
        for drafted, accepted in rounds:
            chunk = Chunk(text="", choice_index=index, rounds=(a_round(drafted, accepted),))
            accounting.add(chunk, 0)
    found = accounting.metrics.speculative_decoding
    histogram = found.acceptance_histogram
    assert len(histogram) == found.num_spec_tokens + 1 and sum(histogram) == found.num_spec_steps
    assert sum(length * count for length, count in enumerate(histogram)) == found.num_accepted_draft_tokens
    assert found.num_accepted_draft_tokens <= found.num_draft_tokens
