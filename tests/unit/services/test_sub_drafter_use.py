"""The cost model: when the drafter makes a local proposal, and when it requests snippets."""

import pytest

from services.drafter.cost_model import ProposalBenefit


def share(decisions: list[bool]) -> float:
    return sum(decisions) / len(decisions)


@pytest.mark.parametrize(("proposal_s", "share_proposed"), [(0.001, 1.0), (0.1, 1 / 13)])
def test_local_proposals_are_compared_with_the_forwards_that_they_save(
    proposal_s: float, share_proposed: float
) -> None:
    benefit = ProposalBenefit()
    assert benefit.should_propose(), "nothing is known yet"
    for _ in range(50):
        benefit.record_forwards(10, 0.1)
        benefit.record_local_proposal(proposal_s)
        benefit.record_local_matches(2)
    assert share([benefit.should_propose() for _ in range(130)]) == pytest.approx(share_proposed)


def test_fewer_sequences_look_for_repeats_while_none_repeats_another() -> None:
    benefit = ProposalBenefit()
    assert share([benefit.begin_sequence() for _ in range(8)]) == 1
    assert share([benefit.begin_sequence() for _ in range(80)]) == 0.25
    benefit.record_repeat(40)
    assert share([benefit.begin_sequence() for _ in range(8)]) == 1


def test_few_snippets_are_requested_from_a_sub_drafter_that_has_none() -> None:
    benefit = ProposalBenefit()
    assert benefit.should_fetch(), "nothing is known yet"
    for _ in range(60):
        benefit.record_snippets(0)
    assert share([benefit.should_fetch() for _ in range(130)]) == pytest.approx(1 / 13)
    benefit.record_snippets(2)
    assert benefit.should_fetch()
