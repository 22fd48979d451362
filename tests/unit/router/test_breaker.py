"""The circuit breaker: a failure opens it, time half opens it, an answer closes it."""

from hypothesis import given
from hypothesis import strategies as st

from router.replicas.breaker import Breaker, BreakerState
from tests.support.clock import VirtualClock

ROUNDING_S = 1e-9
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def test_the_first_failure_asks_for_a_probe_at_once_and_the_next_for_patience() -> None:
    clock = VirtualClock()
    breaker = Breaker(clock)
    assert breaker.state is CLOSED
    breaker.record_failure()
    assert (breaker.state, breaker.wait_s) == (HALF_OPEN, 0.0)
    breaker.record_failure()
    assert breaker.state is OPEN and breaker.wait_s > 0
    clock.advance(breaker.wait_s)
    assert breaker.state is HALF_OPEN
    breaker.record_success()
    assert breaker.state is CLOSED
    breaker.record_failure()
    assert breaker.state is HALF_OPEN, "an answer makes good what was before"


@given(st.lists(st.one_of(st.just("failed"), st.just("answered"), st.floats(0.0, 10.0)), max_size=40))
def test_it_is_closed_just_after_an_answer_and_never_open_for_long(events: list[str | float]) -> None:
    clock = VirtualClock()
    breaker, is_sound, waits = Breaker(clock), True, []
    for event in events:
        if isinstance(event, float):
            clock.advance(event)
        elif event == "failed":
            breaker.record_failure()
            is_sound = False
            waits.append(breaker.wait_s)
        else:
            breaker.record_success()
            is_sound = True
            waits.clear()
        assert (breaker.state is CLOSED) == is_sound
        assert breaker.wait_s <= 5.0 + ROUNDING_S
        assert waits == sorted(waits)
