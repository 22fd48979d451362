"""The pool that a stream's replica is picked from: weights, and replicas on trial."""

from contextlib import ExitStack
from typing import Any

import pytest

from fly.clock import VirtualClock
from fly.messages import Endpoint, Load, ModelInfo, Role
from router.policies import create_policy
from router.replicas.breaker import Breaker
from router.replicas.pools import Replica, ReplicaPool, any_replica

INFO = ModelInfo(Role.TARGET, "m", "w", "a", "t", 10, 0, "", 1, 0, "")
NO_CHANNEL: Any = None


def replica(name: str, breaker: Breaker | None = None, load: Load | None = None) -> Replica:
    endpoint = Endpoint(Role.TARGET, f"{name}:1", name)
    return Replica(endpoint, NO_CHANNEL, INFO, load or Load(), breaker or Breaker(VirtualClock()))


def failed() -> Breaker:
    breaker = Breaker(VirtualClock())
    breaker.failed()
    return breaker


def pool(*replicas: Replica, is_needed: bool = True) -> ReplicaPool:
    made = ReplicaPool(create_policy("least_load"), is_needed)
    for each in replicas:
        made.add(each)
    return made


def nothing() -> None:
    return


def test_a_replicas_weight_is_our_own_sequences_and_what_others_have_there() -> None:
    one = replica("a", load=Load(sequences=5, queued=2))
    assert one.weight == 9
    with one.lease(nothing), one.lease(nothing):
        one.told(Load(sequences=6))
        assert one.weight == 6, "two of the six are ours"
    assert one.weight == 4, "our own are known to have ended"


def test_a_replica_on_trial_gets_one_sequence_at_a_time() -> None:
    sound, doubtful = replica("a"), replica("b", failed())
    both = pool(sound, doubtful)
    with ExitStack() as leases:
        for _ in range(3):
            leases.enter_context(sound.lease(nothing))
        assert both.pick(any_replica) is doubtful
        leases.enter_context(doubtful.lease(nothing))
        assert both.pick(any_replica) is sound
        doubtful.served(Load())
        assert both.pick(any_replica) is doubtful


@pytest.mark.parametrize("is_needed", [True, False])
def test_only_a_tier_that_is_needed_has_all_its_hopes_in_a_replica_on_trial(is_needed: bool) -> None:
    doubtful = replica("a", failed())
    alone = pool(doubtful, is_needed=is_needed)
    with doubtful.lease(nothing):
        assert (alone.pick(any_replica) is doubtful) == is_needed
    assert alone.pick(any_replica) is doubtful


def test_what_old_streams_say_does_not_vouch_for_a_replica_that_broke() -> None:
    breaker = failed()
    doubtful = replica("a", breaker)
    doubtful.is_broken.set()
    doubtful.served(Load())
    assert doubtful.is_on_trial


def test_hanging_up_ends_every_stream() -> None:
    ended: list[int] = []
    one = replica("a")
    with one.lease(lambda: ended.append(1)), one.lease(lambda: ended.append(2)):
        one.hang_up()
    assert sorted(ended) == [1, 2]
