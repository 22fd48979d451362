"""When the sub-drafter is asked, and waited for."""

import pytest

from services.drafter.worth import Worth


def experienced(sub_drafter_tokens: int, forward_s: float = 0.01, latency_s: float = 0.001) -> Worth:
    worth = Worth()
    for _ in range(50):
        worth.saw_forwards(10, 10 * forward_s)
        worth.saw_answer(latency_s)
        worth.saw_use(sub_drafter_tokens, asked=1)
    return worth


def share(decisions: list[bool]) -> float:
    return sum(decisions) / len(decisions)


def test_without_experience_it_asks_and_waits() -> None:
    worth = Worth()
    assert worth.pays and worth.asks() and worth.waits() and worth.patience_s > 0


def test_useful_answers_are_asked_for_every_time() -> None:
    worth = experienced(sub_drafter_tokens=3)
    assert all(worth.asks() for _ in range(100))


@pytest.mark.parametrize(
    "worth", [experienced(sub_drafter_tokens=0), experienced(sub_drafter_tokens=1, forward_s=0.0001)]
)
def test_what_does_not_pay_is_only_probed(worth: Worth) -> None:
    assert not worth.pays
    assert 0 < share([worth.asks() for _ in range(160)]) < 0.1


def test_questions_come_back_when_they_pay_again() -> None:
    worth = experienced(sub_drafter_tokens=0)
    for _ in range(10):
        worth.saw_use(6, asked=1)
    assert worth.pays


def test_patience_is_a_part_of_a_forward() -> None:
    assert 0 < experienced(1, forward_s=0.02).patience_s < 0.02


def test_slow_answers_are_not_waited_for() -> None:
    worth = experienced(sub_drafter_tokens=3, latency_s=0.02)
    assert 0 < share([worth.waits() for _ in range(160)]) < 0.1
    assert all(experienced(sub_drafter_tokens=3).waits() for _ in range(100))


def test_waiting_in_vain_ends_the_waiting() -> None:
    worth = experienced(sub_drafter_tokens=3)
    for _ in range(30):
        worth.saw_wait(worth.patience_s, was_in_vain=True)
    assert share([worth.waits() for _ in range(160)]) < 0.1


def test_waiting_counts_as_a_cost() -> None:
    worth = experienced(sub_drafter_tokens=1)
    for _ in range(50):
        worth.saw_wait(0.02, was_in_vain=False)
    assert not worth.pays
