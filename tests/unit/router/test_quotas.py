"""Quotas: requests at once and per minute of a key, and the bytes of bodies of a key and of all."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import InvalidRequest, Overloaded
from router.security.keys import ANONYMOUS, Caller
from router.security.quotas import ByteLimits, HoldBytes, Quotas
from tests.support.clock import VirtualClock

BYTES = ByteLimits(in_all=100, per_key=60)
ALICE, BOB = Caller("alice", max_concurrent=2), Caller("bob")


def quotas(clock: VirtualClock | None = None) -> Quotas:
    return Quotas(clock or VirtualClock(), BYTES)


def is_rejected(block: AbstractContextManager[Any]) -> bool:
    """Enter a block and leave it; return True if it is not entered because of a quota."""
    try:
        with block:
            return False
    except Overloaded as error:
        assert error.retry_after_s > 0
        return True


def test_a_key_has_a_maximum_of_concurrent_requests() -> None:
    found = quotas()
    with found.admitted(ALICE), found.admitted(BOB), found.admitted(BOB), found.admitted(BOB):
        with found.admitted(ALICE), pytest.raises(Overloaded, match="2 requests running or queued"):
            found.admitted(ALICE).__enter__()
        assert not is_rejected(found.admitted(ALICE))


def test_a_key_has_a_maximum_per_minute_and_a_rejection_has_a_retry_delay() -> None:
    clock = VirtualClock()
    found, alice = quotas(clock), Caller("alice", requests_per_minute=30)

    def served() -> int:
        return next(number for number in range(100) if is_rejected(found.admitted(alice)))

    assert served() == 30
    with pytest.raises(Overloaded) as rejected:
        found.admitted(alice).__enter__()
    assert rejected.value.retry_after_s == pytest.approx(2.0)
    clock.advance(2.0)
    assert served() == 1
    clock.advance(3600.0)
    assert served() == 30


def test_a_request_that_is_rejected_for_its_bytes_costs_none_of_its_rate() -> None:
    found, alice = quotas(), Caller("alice", requests_per_minute=2)
    for _ in range(5):
        with pytest.raises(Overloaded, match="max_body_bytes_per_key"), found.admitted(alice) as hold:
            hold(61)
    assert [is_rejected(found.admitted(alice)) for _ in range(3)] == [False, False, True]


def test_each_prompt_of_a_batch_counts_as_a_request() -> None:
    found, alice = quotas(), Caller("alice", max_concurrent=3, requests_per_minute=5)
    with found.admitted(alice), found.batch(alice, 2):
        assert not is_rejected(found.admitted(alice))
        assert is_rejected(found.batch(alice, 3))
    with found.admitted(alice):
        assert is_rejected(found.batch(alice, 3)), "4 of 5 are used"
        assert not is_rejected(found.batch(alice, 1))
    for limits in ({"max_concurrent": 3}, {"requests_per_minute": 3}):
        (name,) = limits
        with pytest.raises(InvalidRequest, match=rf"has 4 prompts.* may have 3 \({name}\)"):
            found.batch(Caller("bob", **limits), 4).__enter__()


def test_bytes_are_limited_for_a_key_and_for_all() -> None:
    found = quotas()
    with found.admitted(ALICE, 60), found.admitted(ANONYMOUS, 30) as hold:
        with pytest.raises(Overloaded, match=r"60 bytes.*max_body_bytes_per_key"):
            found.admitted(ALICE, 1).__enter__()
        assert is_rejected(found.admitted(BOB, 11)) and not is_rejected(found.admitted(BOB, 10))
        hold(10)
        with pytest.raises(Overloaded, match=r"100 bytes.*max_body_bytes_in_all"):
            hold(1)
    assert not is_rejected(found.admitted(ANONYMOUS, 100))


def test_an_address_without_a_key_leaves_half_of_the_bytes_to_others() -> None:
    found = quotas()
    first, second = (
        lambda number, of=of: found.admitted(ANONYMOUS, number, of) for of in ("1.1.1.1", "2.2.2.2")
    )
    with first(50):
        assert is_rejected(first(1)) and not is_rejected(second(50))
        with first(0) as hold, pytest.raises(Overloaded, match="one address may have half of the bytes"):
            hold(1)
        with second(20):
            assert not is_rejected(second(5)) and is_rejected(second(6))
            with found.admitted(BOB, 30):
                pass
    with first(100):
        pass
    with first(10) as hold:
        hold(90)


class Running(NamedTuple):
    """A request that runs, and the bytes that it holds."""

    stack: ExitStack
    hold: HoldBytes
    caller: Caller
    held: list[int]


class Requests:
    """Requests at some places, with limits of their own that are as simple as possible."""

    def __init__(self) -> None:
        self.quotas = quotas()
        self.running: dict[int, Running] = {}

    def begin(self, place: int, caller: Caller, number: int) -> None:
        stack = ExitStack()
        at_once = sum(each.caller is caller for each in self.running.values())
        is_full = caller is ALICE and at_once == 2
        with self.expected(is_full or self.is_too_much(caller, number)):
            hold = stack.enter_context(self.quotas.admitted(caller, number))
            self.running[place] = Running(stack, hold, caller, [number])

    def receive(self, place: int, number: int) -> None:
        request = self.running[place]
        with self.expected(self.is_too_much(request.caller, number, sum(request.held))):
            request.hold(number)
            request.held.append(number)

    def end(self, place: int) -> None:
        self.running.pop(place).stack.close()

    def is_too_much(self, caller: Caller, number: int, of_request: int = 0) -> bool:
        held = [(each.caller, sum(each.held)) for each in self.running.values()]
        of_caller = sum(each for owner, each in held if owner is caller)
        in_all = sum(each for _, each in held)
        if (
            caller is ANONYMOUS
            and number
            and of_caller > of_request
            and of_caller + number > (100 - in_all + of_caller) // 2
        ):
            return True
        return (caller is not ANONYMOUS and of_caller + number > 60) or in_all + number > 100

    def expected(self, is_rejected: bool) -> AbstractContextManager[Any]:
        return pytest.raises(Overloaded) if is_rejected else ExitStack()


STEPS = st.tuples(
    st.integers(0, 5), st.sampled_from((ALICE, BOB, ANONYMOUS)), st.integers(0, 40), st.booleans()
)


@given(st.lists(STEPS))
def test_quotas_are_exact_whatever_begins_arrives_and_ends(
    steps: list[tuple[int, Caller, int, bool]],
) -> None:
    requests = Requests()
    for place, caller, number, ends in steps:
        if place not in requests.running:
            requests.begin(place, caller, number)
        elif ends:
            requests.end(place)
        else:
            requests.receive(place, number)
