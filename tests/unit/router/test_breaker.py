"""The circuit breaker: a failure opens it, time half opens it, an answer closes it."""

from hypothesis import given
from hypothesis import strategies as st

from router.replicas.breaker import Breaker
from tests.support.clock import VirtualClock

ROUNDING_S = 1e-9


def test_the_first_failure_asks_for_a_probe_at_once_and_the_next_for_patience() -> None:
    clock = VirtualClock()
    breaker = Breaker(clock)
    assert not breaker.has_failed
    breaker.record_failure()
    assert breaker.has_failed and not breaker.wait_s
    breaker.record_failure()
    assert breaker.has_failed and breaker.wait_s > 0
    clock.advance(breaker.wait_s)
    assert breaker.has_failed and not breaker.wait_s
    breaker.record_success()
    assert not breaker.has_failed
    breaker.record_failure()
    assert breaker.has_failed and not breaker.wait_s, "an answer makes good what was before"


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
        assert breaker.has_failed != is_sound
        assert breaker.wait_s <= 5.0 + ROUNDING_S
        assert waits == sorted(waits)
