"""Balancing policies: one decision each."""

from dataclasses import dataclass, field

import pytest

from fly.messages import Load
from router.policies import POLICIES, create_policy


@dataclass(frozen=True)
class Place:
    address: str
    outstanding: int = 0
    load: Load = field(default_factory=Load)


def test_least_load_counts_our_own_and_the_reported_sequences() -> None:
    policy = create_policy("least_load")
    ours = Place("a", outstanding=3)
    theirs = Place("b", load=Load(sequences=2))
    waiting = Place("c", load=Load(sequences=1, queued=4))
    assert policy.choose([ours, theirs, waiting]) is theirs


def test_round_robin_takes_each_in_turn_while_replicas_come_and_go() -> None:
    policy = create_policy("round_robin")
    a, b, c = Place("a"), Place("b"), Place("c")
    assert [policy.choose([c, a, b]).address for _ in range(4)] == ["a", "b", "c", "a"]
    assert policy.choose([a, c]).address == "c"
    assert policy.choose([a]).address == "a"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_chooses_one_of_the_candidates(name: str) -> None:
    places = [Place(letter, outstanding=ord(letter)) for letter in "dbca"]
    policy = create_policy(name)
    assert all(policy.choose(places) in places for _ in range(9))


def test_two_pools_share_no_state() -> None:
    places = [Place("a"), Place("b")]
    first, second = create_policy("round_robin"), create_policy("round_robin")
    assert first.choose(places) is second.choose(places) is places[0]
