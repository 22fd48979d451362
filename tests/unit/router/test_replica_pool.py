"""The pool from which the replica of a stream is picked: loads, and half-open replicas."""

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Load, ModelInfo, Role
from router.policies import create_policy
from router.replicas.breaker import Breaker
from router.replicas.pools import ReplicaPool, any_replica
from router.replicas.replica import Replica
from tests.support.clock import VirtualClock

INFO = ModelInfo(Role.TARGET, "m", "w", "a", "t", 10, 0, "", 1, 0, "")
NO_CHANNEL: Any = None


def replica(name: str, breaker: Breaker | None = None, load: Load | None = None, places: int = 0) -> Replica:
    endpoint = Endpoint(Role.TARGET, f"{name}:1", name)
    clock = VirtualClock()
    info = replace(INFO, max_sequences=places)
    return Replica(endpoint, NO_CHANNEL, info, load or Load(), breaker or Breaker(clock), clock)


def failed() -> Breaker:
    breaker = Breaker(VirtualClock())
    breaker.record_failure()
    return breaker


def pool(*replicas: Replica, is_required: bool = True) -> ReplicaPool:
    made = ReplicaPool(create_policy("least_load"), is_required, random.Random(0))
    for each in replicas:
        made.add(each)
    return made


def nothing() -> None:
    return


def test_the_load_of_a_replica_is_our_own_sequences_and_those_of_others() -> None:
    one = replica("a", load=Load(sequences=5, queued=2))
    assert one.load == 9
    with one.lease(nothing), one.lease(nothing):
        one.record_load(Load(sequences=6))
        assert one.load == 6, "two of the six are ours"
    assert one.load == 4, "our own have ended"


def test_a_half_open_replica_gets_one_sequence_at_a_time() -> None:
    healthy, half_open = replica("a"), replica("b", failed())
    both = pool(healthy, half_open)
    with ExitStack() as leases:
        for _ in range(3):
            leases.enter_context(healthy.lease(nothing))
        assert both.pick(any_replica) is half_open
        leases.enter_context(half_open.lease(nothing))
        assert both.pick(any_replica) is healthy
        half_open.record_answer(Load())
        assert both.pick(any_replica) is half_open


@pytest.mark.parametrize("is_required", [True, False])
def test_only_a_required_tier_falls_back_to_a_half_open_replica(is_required: bool) -> None:
    half_open = replica("a", failed())
    alone = pool(half_open, is_required=is_required)
    with half_open.lease(nothing):
        assert (alone.pick(any_replica) is half_open) == is_required
    assert alone.pick(any_replica) is half_open


def test_a_half_open_replica_that_is_needed_gets_more_sequences_while_it_has_places() -> None:
    half_open = replica("a", failed(), places=2)
    drafters = pool(half_open, is_required=False)
    with half_open.lease(nothing):
        assert drafters.pick(any_replica, is_needed=True) is half_open
        with half_open.lease(nothing):
            assert drafters.pick(any_replica, is_needed=True) is None, "it is full"


def test_answers_on_old_streams_do_not_close_the_breaker() -> None:
    breaker = failed()
    half_open = replica("a", breaker)
    half_open.is_broken.set()
    half_open.record_answer(Load())
    assert half_open.is_half_open


def test_cancelling_ends_every_stream() -> None:
    ended: list[int] = []
    one = replica("a")
    with one.lease(lambda: ended.append(1)), one.lease(lambda: ended.append(2)):
        one.cancel_streams()
    assert sorted(ended) == [1, 2]


def test_other_routers_sequences_take_places_but_not_all() -> None:
    assert replica("a", places=64).places == 64 and replica("a").places is None
    assert replica("a", load=Load(sequences=20), places=64).places == 44
    assert replica("a", load=Load(sequences=64, queued=9), places=64).places == 8


def test_a_replica_that_refused_is_full_until_a_sequence_ends() -> None:
    one, other = replica("a"), replica("b", load=Load(sequences=9))
    both = pool(one, other, is_required=False)
    with one.lease(nothing):
        one.record_refusal(1.0)
        assert one.is_full and one.places == 1 and both.pick(any_replica) is other
    assert not one.is_full and both.pick(any_replica) is one


def test_only_a_required_tier_falls_back_to_a_full_replica() -> None:
    full = replica("a", load=Load(sequences=2), places=2)
    assert pool(full).pick(any_replica) is full
    assert pool(full, is_required=False).pick(any_replica) is None


def test_replicas_are_drawn_in_proportion_to_their_places() -> None:
    """Free or not: weights with which every request fails at once always have free places."""
    old, new, full = replica("a", places=10), replica("b", places=90), replica("c", places=1)
    tier = pool(old, new, full)
    with full.lease(nothing):
        drawn = Counter(tier.draw(any_replica) for _ in range(1000))
        assert drawn.keys() == {old, new} and 50 < drawn[old] < 150
        with ExitStack() as leases:
            for _ in range(89):
                leases.enter_context(new.lease(nothing))
            assert 50 < Counter(tier.draw(any_replica) for _ in range(1000))[old] < 150
        assert tier.draw(lambda each: each is full) is full and tier.draw(lambda each: False) is None


def test_replicas_without_a_number_of_places_are_drawn_alike() -> None:
    one, other = replica("a"), replica("b")
    tier = pool(one, other)
    assert 400 < Counter(tier.draw(any_replica) for _ in range(1000))[one] < 600


def test_a_replica_that_fails_is_not_picked_and_ends_every_stream() -> None:
    ended: list[int] = []
    one = replica("a")
    with one.lease(lambda: ended.append(1)):
        one.fail()
    assert ended and pool(one).pick(any_replica) is None
