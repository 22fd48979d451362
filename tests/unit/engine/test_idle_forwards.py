"""The cost of another sequence in idle forwards, from their durations."""

import pytest

from services.engine.scheduling.idle_forwards import IdleForwards


def test_the_cost_is_the_added_share_of_a_forward_of_one() -> None:
    forwards = IdleForwards()
    forwards.record(4, 9.0)
    assert forwards.added_cost is None, "nothing to compare it with"
    forwards.record(1, 2.0)
    forwards.record(4, 3.2)
    assert forwards.added_cost == pytest.approx(0.2)
    for _ in range(100):
        forwards.record(2, 1.9)
    assert forwards.added_cost == pytest.approx(0.0, abs=1e-4), "it follows changes, and is never negative"
