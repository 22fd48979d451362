"""The retry policy, without a server or a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import (
    DeadlineExceeded,
    FlyServeError,
    InvalidRequest,
    NotReady,
    Overloaded,
    Unauthenticated,
)
from flyserve.retries import RetryPolicy

AWAY, SHARE = NotReady("away"), st.floats(0, 1)


def waits(policy: RetryPolicy, error: FlyServeError, now: float = 0.0) -> list[float]:
    """The waits until it gives up; every try itself takes no time."""
    delays = []
    while True:
        try:
            delays.append(policy.next_delay_s(error, now))
        except FlyServeError as raised:
            assert raised is error
            return delays
        now += delays[-1]


@given(retries=st.integers(0, 12), draw=SHARE)
def test_waits_double_and_are_bounded(retries: int, draw: float) -> None:
    delays = waits(RetryPolicy(retries, 1, 0, None, 0.0, lambda: draw), AWAY)
    assert len(delays) == retries
    for count, wait_s in enumerate(delays):
        longest_s = min(0.1 * 2**count, 5.0)
        assert longest_s / 2 - 1e-9 <= wait_s <= longest_s + 1e-9


def test_waits_of_hours_stay_bounded() -> None:
    assert waits(RetryPolicy(3000, 1, 0, None, 0.0, lambda: 1.0), AWAY)[-1] == 5.0


@given(delay_s=st.floats(0.001, 100), draw=SHARE)
def test_a_full_server_is_never_asked_sooner_than_it_says(delay_s: float, draw: float) -> None:
    (wait_s,) = waits(RetryPolicy(1, 1, 0, None, 0.0, lambda: draw), Overloaded("full", delay_s))
    assert delay_s <= wait_s <= 1.25 * delay_s * (1 + 1e-9)


@given(timeout_s=st.floats(0.01, 20), draw=SHARE, num_places=st.integers(1, 3))
def test_no_wait_goes_beyond_the_deadline(timeout_s: float, draw: float, num_places: int) -> None:
    assert sum(waits(RetryPolicy(1000, num_places, 0, timeout_s, 0.0, lambda: draw), AWAY)) < timeout_s


@pytest.mark.parametrize(
    "error",
    [InvalidRequest.of("n", "is 0"), Unauthenticated("no"), FlyServeError("internal"), Overloaded("big", 0)],
)
def test_what_is_unsafe_or_useless_is_not_tried_again(error: FlyServeError) -> None:
    assert waits(RetryPolicy(5, 2, 0, None, 0.0), error) == []


def test_other_addresses_are_tried_at_once_and_each_keeps_its_patience() -> None:
    policy = RetryPolicy(10, 3, 1, None, 0.0, lambda: 1.0)
    assert (policy.next_delay_s(Overloaded("full", 4.0), 0.0), policy.place) == (0.0, 2)
    assert (policy.next_delay_s(AWAY, 0.0), policy.place) == (0.0, 0)
    assert (policy.next_delay_s(AWAY, 0.0), policy.place) == (5.0, 1)


def test_progress_begins_a_new_row() -> None:
    policy = RetryPolicy(1, 1, 0, None, 0.0)
    for _ in range(5):
        assert policy.next_delay_s(AWAY, 0.0) <= 0.1
        policy.progressed()


def test_the_deadline_is_that_of_the_whole_call() -> None:
    policy = RetryPolicy(3, 1, 0, 2.0, 10.0)
    assert policy.remaining_s(11.5) == 0.5
    with pytest.raises(DeadlineExceeded):
        policy.remaining_s(12.0)
    assert RetryPolicy(3, 1, 0, None, 10.0).remaining_s(1e9) is None
    for more_than_a_day_s in (1e5, 1e12, 1e308, float("inf")):
        assert RetryPolicy(3, 1, 0, more_than_a_day_s, 10.0).remaining_s(10.0) == 86_400
