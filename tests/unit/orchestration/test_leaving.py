"""Leaving a node goes on while the controller is being restarted, and ends in time in any case."""

import pytest

from flyserve.core.errors import NotReady
from orchestration.ray.leaving import follow_leaving


class Controller:
    """A controller whose answers are given: the replicas that are left, or an error that repeats for ever."""

    def __init__(self, *answers: tuple[str, ...] | NotReady) -> None:
        self.answers, self.calls, self.now = list(answers), list[tuple[bool, float]](), 0.0

    def replicas_left(self, is_urgent: bool, timeout_s: float) -> tuple[str, ...]:
        self.calls.append((is_urgent, timeout_s))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, NotReady):
            self.now += timeout_s
            raise answer
        return answer

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def leave(self, timeout_s: float) -> None:
        follow_leaving(self.replicas_left, "abcdefghij", timeout_s, lambda: self.now, self.pause)


def test_a_call_that_fails_is_repeated() -> None:
    restarting = NotReady("the controller is being restarted: try again")
    controller = Controller(("target-0.1",), restarting, restarting, ("target-0.1",), ())
    controller.leave(300)
    assert len(controller.calls) == 5


def test_a_controller_that_stays_away_is_reported_when_the_time_is_over() -> None:
    controller = Controller(NotReady("the controller did not answer within 30 s"))
    with pytest.raises(NotReady, match=r"after 100 s, the node abcdefgh cannot end: the controller did not"):
        controller.leave(100)
    assert controller.now <= 101
    assert [is_urgent for is_urgent, _ in controller.calls] == [False, False, True, True]


def test_replicas_that_stay_are_named_when_the_time_is_over() -> None:
    controller = Controller(("target-1.1", "target-0.1"))
    with pytest.raises(NotReady, match=r"it still runs target-0\.1, target-1\.1"):
        controller.leave(5)
    assert controller.now == 5
