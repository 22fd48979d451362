"""Drafters whose drafts are nearly all rejected: found, compared, left out and taken back."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Load, ModelInfo, Role
from router.policies import create_policy
from router.policies.request_key import RequestKey, request_key
from router.replicas.acceptance import Acceptance, AcceptanceState
from router.replicas.breaker import Breaker
from router.replicas.drafters import DrafterPool
from router.replicas.pools import any_replica
from router.replicas.replica import Replica
from tests.support.clock import VirtualClock

USUAL, REJECTED, LEFT_OUT = AcceptanceState
INFO = ModelInfo(Role.DRAFTER, "m", "w", "a", "t", 10, 0, "", 1, 0, "")
NO_CHANNEL: Any = None
GOOD, BROKEN = 0.7, 0.01


def drafter(name: str, **info: Any) -> Replica:
    clock = VirtualClock()
    endpoint = Endpoint(Role.DRAFTER, f"{name}:1", name)
    return Replica(endpoint, NO_CHANNEL, replace(INFO, **info), Load(), Breaker(clock), clock)


class Tier:
    """Drafters with acceptance rates, and requests, of which some are so hard that no draft is accepted."""

    def __init__(self, *rates: float, policy: str = "power_of_two", seed: int = 0, **info: Any) -> None:
        self.source = random.Random(seed)
        self.pool = DrafterPool(create_policy(policy), self.source)
        self.drafters: list[Replica] = []
        self.rates: dict[str, float] = {}
        for rate in rates:
            self.join(rate, **info)

    def join(self, rate: float, **info: Any) -> Replica:
        found = drafter(f"drafter-{len(self.rates)}", **info)
        self.drafters.append(found)
        self.pool.add(found)
        self.rates[found.identity] = rate
        return found

    def serve(
        self, requests: int, hard_share: float = 0.0, key: Callable[[bool], RequestKey] = lambda is_hard: ()
    ) -> Counter[str]:
        """Serve responses of a few rounds each; return how many each drafter got."""
        served = Counter[str]()
        for _ in range(requests):
            is_hard = self.source.random() < hard_share
            assignment = self.pool.assign(any_replica, key(is_hard))
            assert assignment is not None
            name = assignment.replica.identity
            rate = 0.0 if is_hard else self.rates[name]
            num_judged = self.source.randint(1, 60)
            assignment.record(num_judged, sum(self.source.random() < rate for _ in range(num_judged)))
            served[name] += 1
        return served

    @property
    def states(self) -> list[AcceptanceState]:
        return [each.acceptance.state for each in self.drafters]


@pytest.mark.parametrize("policy", ["power_of_two", "prefix_affinity", "round_robin"])
def test_a_broken_drafter_is_left_out_while_others_draft_better(policy: str) -> None:
    tier = Tier(BROKEN, GOOD, GOOD, policy=policy)
    keys = [request_key([n] * 40, "") for n in range(100)]
    tier.serve(600, key=lambda _: tier.source.choice(keys))
    assert tier.states == [LEFT_OUT, USUAL, USUAL]
    assert 0 < tier.serve(2000, key=lambda _: tier.source.choice(keys))["drafter-0"] < 130
    assert tier.pool.alarms().keys() == {"drafter-0"}
    assert "left out" in tier.pool.alarms()["drafter-0"]


def test_a_drafter_that_drafts_well_again_is_taken_back() -> None:
    tier = Tier(BROKEN, GOOD)
    tier.serve(400)
    tier.rates["drafter-0"] = GOOD
    tier.serve(4000)
    assert tier.states == [USUAL, USUAL] and not tier.pool.alarms()
    assert tier.serve(1000)["drafter-0"] > 400


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_requests_that_nobody_can_guess_leave_no_drafter_out(seed: int) -> None:
    """One client sends them all to the drafter that owns its prompts; the others have usual requests."""
    tier = Tier(GOOD, GOOD, GOOD, policy="prefix_affinity", seed=seed)
    hard, easy = request_key([7] * 40, ""), [request_key([n] * 40, "") for n in range(50)]

    def key(is_hard: bool) -> RequestKey:
        return hard if is_hard else tier.source.choice(easy)

    tier.serve(1500, hard_share=0.6, key=key)
    assert REJECTED in tier.states and LEFT_OUT not in tier.states
    tier.serve(1500, key=key)
    assert set(tier.states) == {USUAL}


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), num_drafters=st.integers(2, 4))
def test_hard_traffic_and_broken_drafters_everywhere_leave_no_drafter_out(
    seed: int, num_drafters: int
) -> None:
    hard = Tier(*[GOOD] * num_drafters, seed=seed)
    hard.serve(1500, hard_share=0.97)
    assert LEFT_OUT not in hard.states
    broken = Tier(*[BROKEN] * num_drafters, seed=seed)
    broken.serve(1500)
    assert broken.states == [REJECTED] * num_drafters
    assert all("the requests may be the cause" in alarm for alarm in broken.pool.alarms().values())


def test_the_good_one_of_several_broken_drafters_gets_the_requests() -> None:
    tier = Tier(*[BROKEN] * 5, GOOD)
    tier.serve(2000)
    assert tier.states == [*[LEFT_OUT] * 5, USUAL]
    assert tier.serve(1000)["drafter-5"] > 750


def test_a_lone_drafter_is_reported_and_used() -> None:
    tier = Tier(BROKEN)
    assert tier.serve(100) == {"drafter-0": 100}
    assert tier.states == [REJECTED]
    assert "no other drafter is compared with it" in tier.pool.alarms()["drafter-0"]
    tier.join(GOOD)
    tier.serve(400)
    assert tier.states == [LEFT_OUT, USUAL], "a new drafter is compared with it"


def test_a_drafter_that_is_left_out_is_used_where_no_other_is_ready() -> None:
    tier = Tier(BROKEN, GOOD)
    tier.serve(400)
    tier.pool.remove(tier.drafters[1])
    assert tier.serve(50) == {"drafter-0": 50}


def test_a_restarted_drafter_is_judged_by_its_own_drafts() -> None:
    tier = Tier(BROKEN, GOOD)
    tier.serve(400)
    tier.pool.remove(tier.drafters[0])
    tier.join(GOOD)
    assert tier.serve(100)["drafter-2"] > 25


def test_look_up_is_never_judged() -> None:
    tier = Tier(0.0, 0.0, weight_fingerprint="")
    tier.serve(500)
    assert tier.states == [USUAL, USUAL]


def test_the_log_has_one_line_per_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tier = Tier(BROKEN, GOOD)
    tier.serve(1000)
    found = [(r.levelname, r.getMessage()) for r in caplog.records if "drafter-0" in r.getMessage()]
    assert [level for level, _ in found] == ["WARNING", "WARNING"]
    assert "nearly all of its drafts are rejected" in found[0][1] and "it is left out" in found[1][1]


def judged(rates: Sequence[float], acceptance: Acceptance) -> AcceptanceState:
    for rate in rates:
        acceptance.record(100, round(100 * rate))
    return acceptance.state


def test_few_responses_are_no_evidence_and_an_alarm_ends_later_than_it_began() -> None:
    acceptance = Acceptance()
    assert judged([0.0] * 15, acceptance) is USUAL and acceptance.rate != acceptance.rate
    assert judged([0.0], acceptance) is REJECTED
    assert judged([0.1] * 200, acceptance) is REJECTED, "more than what raised the alarm, and still few"
    assert judged([0.5] * 200, acceptance) is USUAL
    assert judged([0.1] * 200, acceptance) is USUAL


def test_one_long_response_counts_as_one() -> None:
    acceptance = Acceptance()
    for _ in range(20):
        acceptance.record(16, 10)
    acceptance.record(100_000, 0)
    assert acceptance.state is USUAL and acceptance.rate > 0.5
