"""Balancing policies: one decision each."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fly.blocks import BLOCK_TOKENS
from router.policies import POLICIES, create_policy
from router.policies.anchors import RecentTraffic
from router.policies.base import Policy
from router.policies.key import RequestKey, request_key
from router.policies.power_of_two import PowerOfTwo
from router.policies.prefix_affinity import LOAD_FACTOR, load_bound, ranked

PLACES = st.lists(st.integers(0, 40), min_size=1, max_size=12)


@dataclass(frozen=True)
class Place:
    identity: str
    weight: int = 0


def places(weights: Sequence[int]) -> list[Place]:
    return [Place(f"target-{index}", weight) for index, weight in enumerate(weights)]


def prompt(*blocks: int) -> list[int]:
    """One block of tokens for each number, and a last token that belongs to none."""
    return [block * 1000 + offset for block in blocks for offset in range(BLOCK_TOKENS)] + [7]


def key(*blocks: int, salt: str = "") -> RequestKey:
    return request_key(prompt(*blocks), salt)


def send(policy: Policy, candidates: Sequence[Place], *keys: RequestKey) -> list[str]:
    """Where each request goes."""
    return [policy.choose(candidates, each).identity for each in keys]


def test_round_robin_takes_each_in_turn_while_replicas_come_and_go() -> None:
    policy = create_policy("round_robin")
    a, b, c = Place("a"), Place("b"), Place("c")
    assert send(policy, [c, a, b], (), (), (), ()) == ["a", "b", "c", "a"]
    assert send(policy, [a, c], (), ()) == ["c", "a"]


def test_two_pools_share_no_state() -> None:
    first, second = create_policy("round_robin"), create_policy("round_robin")
    assert send(first, places([0, 0]), ()) == send(second, places([0, 0]), ())


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(weights=PLACES, blocks=st.lists(st.integers(0, 3), max_size=4))
def test_every_policy_chooses_one_of_the_candidates(name: str, weights: list[int], blocks: list[int]) -> None:
    candidates = places(weights)
    assert create_policy(name).choose(candidates, key(*blocks)) in candidates


@given(PLACES)
def test_least_load_takes_the_lightest(weights: list[int]) -> None:
    assert create_policy("least_load").choose(places(weights), ()).weight == min(weights)


@given(PLACES.filter(lambda weights: len(weights) > 1), st.integers())
def test_power_of_two_takes_neither_the_heaviest_nor_always_the_lightest(
    weights: list[int], seed: int
) -> None:
    policy = PowerOfTwo(random.Random(seed))
    assert policy.choose(places(weights), ()).weight <= sorted(weights)[-2]


def test_power_of_two_spreads_what_comes_at_once() -> None:
    policy = PowerOfTwo(random.Random(1))
    drawn = Counter(policy.choose(places([0] * 8), ()).identity for _ in range(800))
    assert len(drawn) == 8 and max(drawn.values()) < 200


@given(PLACES, st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_affinity_bounds_what_a_replica_carries(weights: list[int], blocks: list[int]) -> None:
    policy, bound = create_policy("prefix_affinity"), load_bound(weights)
    assert all(policy.choose(places(weights), key(*blocks)).weight < bound for _ in range(3))
    assert min(weights) < bound


def test_the_bound_leaves_room_for_chance_and_for_a_quarter_more_than_the_mean() -> None:
    assert load_bound([0, 0, 0, 3]) == 3
    assert load_bound([1000] * 4) == 1251


@given(st.integers(2, 8), st.lists(st.integers(0, 60), min_size=100, max_size=300))
def test_homes_share_the_traffic(num_places: int, groups: list[int]) -> None:
    traffic, order = RecentTraffic(1000), [str(place) for place in range(num_places)]
    share = LOAD_FACTOR / num_places
    for group in groups:
        (anchor,) = key(group)
        home = traffic.home(anchor, order, share)
        traffic.add((anchor,), anchor, home)
    most = max(traffic.at_home(place) for place in order)
    assert most <= max(8, share * len(groups)) + max(Counter(groups).values())
    assert sum(traffic.at_home(place) for place in order) == len(groups)


@given(st.integers(1, 12), st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), max_size=40))
def test_two_routers_that_saw_the_same_decide_the_same(num_places: int, prompts: list[list[int]]) -> None:
    keys = [key(*blocks) for blocks in prompts]
    forwards, backwards = places([0] * num_places), places([0] * num_places)[::-1]
    first, second = create_policy("prefix_affinity"), create_policy("prefix_affinity")
    assert send(first, forwards, *keys) == send(second, backwards, *keys)


def homes(policy: Policy, candidates: Sequence[Place], keys: Sequence[RequestKey]) -> dict[RequestKey, str]:
    return dict(zip(keys, send(policy, candidates, *keys), strict=True))


@given(st.integers(2, 12), st.integers(0, 11))
def test_a_replica_that_goes_moves_only_what_it_had(num_places: int, gone: int) -> None:
    policy, before = create_policy("prefix_affinity"), places([0] * num_places)
    keys, lost = [key(block) for block in range(100)], before[gone % num_places]
    at_first = homes(policy, before, keys)
    policy.left(lost)
    then = homes(policy, [place for place in before if place is not lost], keys)
    moved = [each for each in keys if then[each] != at_first[each]]
    strays = [each for each in moved if at_first[each] != lost.identity]
    assert lost.identity not in then.values()
    assert len(strays) <= 2, "of a place that what it got has made too full"


def test_a_replica_that_comes_takes_its_share_and_moves_nothing_else() -> None:
    policy, after = create_policy("prefix_affinity"), places([0] * 5)
    keys = [key(block) for block in range(400)]
    at_first = homes(policy, after[:4], keys)
    policy.joined(after[4])
    then = homes(policy, after, keys)
    moved = [then[each] for each in keys if then[each] != at_first[each]]
    assert set(moved) == {after[4].identity} and 40 < len(moved) < 120


@given(st.integers(2, 12), st.integers(0, 11), st.integers(0, 10_000))
def test_the_order_of_those_that_stay_does_not_depend_on_who_goes(
    num_places: int, gone: int, block: int
) -> None:
    before = places([0] * num_places)
    (anchor,) = key(block)
    after = [place for place in before if place is not before[gone % num_places]]
    assert ranked(after, anchor) == [place for place in ranked(before, anchor) if place in after]


def test_a_replica_that_does_not_do_for_one_request_keeps_its_homes() -> None:
    policy, candidates = create_policy("prefix_affinity"), places([0] * 4)
    (home,) = send(policy, candidates, key(1))
    others = [place for place in candidates if place.identity != home]
    assert send(policy, others, key(1)) != [home]
    assert send(policy, candidates, key(1)) == [home]


def test_prompts_meet_that_share_a_beginning_and_differ_later() -> None:
    candidates = places([0] * 8)
    for group in range(20):
        asked = [key(group, 50, 100 + user) for user in range(6)]
        assert len(set(send(create_policy("prefix_affinity"), candidates, *asked))) == 1


def test_a_salt_keeps_prompts_apart() -> None:
    asked = [key(1, 2, 3, salt=str(number)) for number in range(40)]
    assert len(set(send(create_policy("prefix_affinity"), places([0] * 4), *asked))) == 4


def test_what_every_prompt_begins_with_pins_nothing() -> None:
    """A preamble of three blocks, then one of twenty system prompts, then the user's own."""
    policy, candidates = create_policy("prefix_affinity"), places([0] * 4)
    groups = [number % 20 for number in range(400)]
    sent = send(policy, candidates, *(key(1, 2, 3, 10 + g, 99 + n) for n, g in enumerate(groups)))
    late = list(zip(groups, sent, strict=True))[100:]
    assert len(set(late)) == 20, "each system prompt has one replica"
    assert len({place for _, place in late}) == 4


def test_a_prefix_that_is_too_common_for_one_replica_is_spread() -> None:
    policy, candidates = create_policy("prefix_affinity"), places([0] * 4)
    sent = send(policy, candidates, *(key(1, 2, 1000 + user) for user in range(400)))
    counts = Counter(sent[40:])
    assert len(counts) == 4 and max(counts.values()) < 1.5 * 360 / 4


def test_a_conversation_stays_where_it_is_however_long_and_alone() -> None:
    policy, candidates = create_policy("prefix_affinity"), places([0] * 4)
    turns = [key(*range(1, 2 + turn)) for turn in range(60)]
    assert len(set(send(policy, candidates, *turns))) == 1


def test_a_key_is_as_long_as_the_prompt_has_full_blocks_but_sparse_in_long_ones() -> None:
    assert request_key([1] * BLOCK_TOKENS, "") == ()
    assert len(request_key([1] * (BLOCK_TOKENS + 1), "")) == 1
    assert len(key(*range(15))) == 15
    assert len(request_key([1] * 100_000, "")) < 70


def test_what_is_old_is_forgotten() -> None:
    traffic, (common, rare) = RecentTraffic(20), key(1, 2)
    for _ in range(20):
        traffic.add((common, key(1, 3)[1]), common, "a")
    assert traffic.anchor((common, rare), 0.1) == rare
    for number in range(20):
        traffic.add(key(100 + number), key(100 + number)[0], "b")
    assert traffic.anchor((common, rare), 0.1) == common
    assert (traffic.at_home("a"), traffic.at_home("b")) == (0, 20)
