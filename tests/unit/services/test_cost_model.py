"""The cost model: when the drafter requests a proposal, and when it waits for the response."""

import pytest

from services.drafter.cost_model import SpeculationBenefit


def trained(sub_drafter_tokens: int, forward_s: float = 0.01, latency_s: float = 0.001) -> SpeculationBenefit:
    benefit = SpeculationBenefit()
    for _ in range(50):
        benefit.record_forwards(10, 10 * forward_s)
        benefit.record_response(latency_s)
        benefit.record_requests(1, sub_drafter_tokens)
    return benefit


def share(decisions: list[bool]) -> float:
    return sum(decisions) / len(decisions)


def test_without_data_it_requests_and_waits() -> None:
    benefit = SpeculationBenefit()
    assert benefit.is_profitable and benefit.should_request() and benefit.should_wait()
    assert benefit.timeout_s > 0


def test_useful_responses_are_requested_every_time() -> None:
    benefit = trained(sub_drafter_tokens=3)
    assert all(benefit.should_request() for _ in range(100))


@pytest.mark.parametrize(
    "benefit", [trained(sub_drafter_tokens=0), trained(sub_drafter_tokens=1, forward_s=0.0001)]
)
def test_unprofitable_requests_are_only_probed(benefit: SpeculationBenefit) -> None:
    assert not benefit.is_profitable
    assert 0 < share([benefit.should_request() for _ in range(160)]) < 0.1


def test_requests_resume_when_they_are_profitable_again() -> None:
    benefit = trained(sub_drafter_tokens=0)
    for _ in range(10):
        benefit.record_requests(1, 6)
    assert benefit.is_profitable


def test_the_timeout_is_a_part_of_a_forward() -> None:
    assert 0 < trained(1, forward_s=0.02).timeout_s < 0.02


def test_it_does_not_wait_for_slow_responses() -> None:
    benefit = trained(sub_drafter_tokens=3, latency_s=0.02)
    assert 0 < share([benefit.should_wait() for _ in range(160)]) < 0.1
    assert all(trained(sub_drafter_tokens=3).should_wait() for _ in range(100))


def test_timeouts_end_the_waiting() -> None:
    benefit = trained(sub_drafter_tokens=3)
    for _ in range(30):
        benefit.record_wait(benefit.timeout_s, timed_out=True)
    assert share([benefit.should_wait() for _ in range(160)]) < 0.1


def test_waiting_counts_as_a_cost() -> None:
    benefit = trained(sub_drafter_tokens=1)
    for _ in range(50):
        benefit.record_wait(0.02, timed_out=False)
    assert not benefit.is_profitable


@pytest.mark.parametrize(("proposal_s", "share_proposed"), [(0.001, 1.0), (0.1, 1 / 13)])
def test_local_proposals_are_compared_with_the_forwards_that_they_save(
    proposal_s: float, share_proposed: float
) -> None:
    benefit = trained(sub_drafter_tokens=0)
    for _ in range(50):
        benefit.record_local_proposal(proposal_s)
        benefit.record_local_matches(2)
    assert share([benefit.should_propose() for _ in range(130)]) == pytest.approx(share_proposed)


def test_fewer_sequences_look_for_repeats_while_none_repeats_another() -> None:
    benefit = SpeculationBenefit()
    assert share([benefit.begin_sequence() for _ in range(8)]) == 1
    assert share([benefit.begin_sequence() for _ in range(80)]) == 0.25
    benefit.record_repeat(40)
    assert share([benefit.begin_sequence() for _ in range(8)]) == 1


def test_few_snippets_are_requested_from_a_sub_drafter_that_has_none() -> None:
    benefit = SpeculationBenefit()
    assert benefit.should_fetch(), "nothing is known yet"
    for _ in range(60):
        benefit.record_snippets(0)
    assert share([benefit.should_fetch() for _ in range(130)]) == pytest.approx(1 / 13)
    benefit.record_snippets(2)
    assert benefit.should_fetch()
