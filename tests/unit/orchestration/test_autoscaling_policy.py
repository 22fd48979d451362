"""The autoscaling policy: single decisions, and a simulated tier under any load that never flaps."""

import heapq
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyserve.core.errors import ConfigError
from orchestration.control.autoscaler import (
    Demand,
    DemandHistory,
    decide,
    explain,
    replicas_needed,
)
from orchestration.deployment.autoscaling import Autoscaling
from services.common.config import parse

SETTINGS = Autoscaling(min=1, max=8, target_load=0.7, upscale_delay_s=5, downscale_delay_s=60)


class Policy:
    """The policy of one tier, whose decisions take effect at once."""

    def __init__(self, settings: Autoscaling = SETTINGS, replicas: int = 1) -> None:
        self.settings, self.replicas, self.now = settings, replicas, 0.0
        self.history: DemandHistory | None = None

    def sample(self, demand: Demand | float | None) -> int:
        known = Demand(demand) if isinstance(demand, int | float) else demand
        self.history, self.replicas = decide(self.history, known, self.replicas, self.settings, self.now)
        return self.replicas

    def during(self, seconds: float, demand: Demand | float | None) -> list[int]:
        """Return the numbers of replicas in that time, each once, with a sample every half second."""
        seen = [self.replicas]
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            if self.sample(demand) != seen[-1]:
                seen.append(self.replicas)
        return seen[1:]

    @property
    def reason(self) -> str:
        return explain(self.history, self.settings)


@pytest.mark.parametrize(
    ("demand", "replicas", "number"),
    [
        (0.0, 1, 1),
        (0.0, 5, 1),
        (0.7, 1, 1),
        (0.77, 1, 1),
        (0.78, 1, 2),
        (1.4, 1, 2),
        (2.1, 1, 3),
        (100.0, 1, 8),
        (5.04, 8, 8),
        (5.03, 8, 8),
        (4.9, 8, 7),
        (0.71, 2, 2),
        (0.7, 2, 1),
    ],
)
def test_the_number_follows_from_demand_and_target_load(demand: float, replicas: int, number: int) -> None:
    assert replicas_needed(demand, replicas, SETTINGS) == number


def test_a_load_that_lasts_adds_all_needed_replicas_at_once() -> None:
    policy = Policy()
    assert policy.during(5, 3.0) == []
    assert policy.reason == "load 300%, target 70%: 5 if it lasts for 0 s more"
    assert policy.during(1, 3.0) == [5]
    assert policy.reason == "load 60%, target 70%: one fewer is too few"


def test_the_lowest_demand_within_the_delay_decides_how_many_are_added() -> None:
    policy = Policy()
    policy.during(3, 6.0)
    policy.during(1, 2.0)
    assert policy.during(2, 6.0) == [3]
    assert policy.during(60, 6.0) == [8]
    assert policy.reason == "load 75%, target 70%: near enough"
    policy.during(60, 16.0)
    assert (policy.replicas, policy.reason) == (8, "load 200%, target 70%: at the maximum")


def test_replicas_that_were_not_needed_for_long_are_drained_at_once() -> None:
    policy = Policy(replicas=8)
    assert policy.during(30, 0.0) == []
    assert policy.reason == "load 0%, target 70%: 1 if it lasts for 30 s more"
    assert policy.during(31, 0.0) == [1]
    assert policy.reason == "load 0%, target 70%: at the minimum"


def test_a_peak_keeps_its_replicas_for_the_whole_delay() -> None:
    policy = Policy(replicas=8)
    policy.during(30, 0.0)
    policy.during(1, 2.0)
    assert policy.during(59, 0.0) == [3]
    assert policy.during(2, 0.0) == [1]


TO_ZERO = Autoscaling(min=0, max=8, target_load=0.7, upscale_delay_s=5, downscale_delay_s=60)


def test_an_idle_tier_is_stopped_and_the_first_request_starts_it_at_once() -> None:
    policy = Policy(TO_ZERO, replicas=2)
    assert policy.during(61, 0.0) == [0]
    assert policy.reason == "stopped while idle: the next request starts a replica"
    assert policy.during(1000, 0.0) == []
    assert policy.during(0.5, 1 / 64) == [1]
    assert policy.during(300, 1 / 64) == [], "a tier with any load is not stopped"
    policy = Policy(TO_ZERO, replicas=0)
    assert policy.during(0.5, 3.0) == [5]


def test_a_number_set_from_outside_stands_until_there_is_history_since_then() -> None:
    policy = Policy(replicas=3)
    policy.during(59, 0.0)
    policy.replicas = 6
    assert policy.during(59, 0.0) == []
    assert policy.during(3, 0.0) == [1]


@pytest.mark.parametrize("gap", ["unknown", "restart", "pause"])
def test_a_gap_in_the_samples_discards_the_history(gap: str) -> None:
    policy = Policy(replicas=3)
    policy.during(59, 0.0)
    if gap == "unknown":
        assert policy.sample(None) == 3
        assert policy.reason.startswith("waiting until")
    elif gap == "restart":
        policy.history = None
    else:
        policy.now += 3600
    assert policy.during(60, 0.0) == []
    assert policy.during(1, 0.0) == [1]


def test_draining_sequences_neither_add_nor_remove_replicas() -> None:
    policy = Policy(replicas=2)
    assert policy.during(100, Demand(0.6, 3.0)) == []
    assert policy.during(62, Demand(0.6, 0.0)) == [1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "max: is required"),
        ({"min": 3, "max": 2}, "max: is 2: must be at least min, which is 3"),
        ({"max": 2, "target_load": 0}, "target_load: is 0"),
        ({"max": 2, "tolerance": 0.6}, "tolerance: is 0.6"),
        ({"max": 2, "downscale_delay_s": 0}, "downscale_delay_s: is 0"),
    ],
)
def test_a_wrong_setting_is_named(data: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(Autoscaling, data, "test")
    assert message in str(error.value)


SETTINGS_OF_ALL_KINDS = st.builds(
    Autoscaling,
    min=st.integers(1, 3),
    max=st.integers(3, 12),
    target_load=st.floats(0.3, 1.0),
    tolerance=st.floats(0.0, 0.3),
    upscale_delay_s=st.sampled_from([0.0, 2.0, 10.0]),
    downscale_delay_s=st.sampled_from([1.0, 10.0, 40.0]),
)


@dataclass(order=True)
class SimulatedReplica:
    """A number of seats, and the ends of the streams that hold them; a draining replica takes no new ones."""

    ready_at: float
    ends: list[float] = field(default_factory=list, compare=False)
    is_draining: bool = field(default=False, compare=False)


class Tier:
    """A tier whose users each start a new stream as soon as the previous one has ended."""

    SEATS = 4
    WAITING = 4

    def __init__(self, policy: Policy, startup_s: float, stream_s: float) -> None:
        self.policy, self.startup_s, self.stream_s = policy, startup_s, stream_s
        self.replicas = [SimulatedReplica(0.0) for _ in range(policy.replicas)]
        self.changes: list[tuple[float, int, int]] = []

    def run(self, seconds: float, users: int) -> None:
        for _ in range(round(seconds)):
            self.policy.now += 1
            self._serve(users)
            self._scale()

    def serving(self) -> list[SimulatedReplica]:
        return [r for r in self.replicas if not r.is_draining and r.ready_at <= self.policy.now]

    def demand(self, replicas: list[SimulatedReplica]) -> float:
        return sum(len(replica.ends) for replica in replicas) / self.SEATS

    def _serve(self, users: int) -> None:
        for replica in self.replicas:
            while replica.ends and replica.ends[0] <= self.policy.now:
                heapq.heappop(replica.ends)
        self.replicas = [r for r in self.replicas if r.ends or not r.is_draining]
        for _ in range(users - sum(len(r.ends) for r in self.replicas)):
            free = min(self.serving(), key=lambda r: len(r.ends), default=None)
            if free is None or len(free.ends) >= self.SEATS + self.WAITING:
                return
            heapq.heappush(free.ends, self.policy.now + self.stream_s)

    def _scale(self) -> None:
        serving = self.serving()
        draining = [replica for replica in self.replicas if replica.is_draining]
        before = self.policy.replicas
        after = self.policy.sample(Demand(self.demand(serving), self.demand(draining)) if serving else None)
        if after == before:
            return
        self.changes.append((self.policy.now, before, after))
        self.replicas += [SimulatedReplica(self.policy.now + self.startup_s) for _ in range(after - before)]
        own = sorted((r for r in self.replicas if not r.is_draining), key=lambda r: len(r.ends))
        for replica in own[: max(0, before - after)]:
            replica.is_draining = True


@settings(max_examples=60)
@given(
    SETTINGS_OF_ALL_KINDS,
    st.lists(st.tuples(st.sampled_from([1.0, 7.0, 50.0]), st.integers(0, 60)), max_size=6),
    st.sampled_from([0.0, 4.0, 20.0]),
    st.sampled_from([0.5, 6.0, 70.0]),
    st.integers(0, 5),
)
def test_the_policy_stays_within_the_limits_never_flaps_and_settles(
    how: Autoscaling,
    phases: list[tuple[float, int]],
    startup_s: float,
    stream_s: float,
    restarted_in: int,
) -> None:
    policy = Policy(how, how.min)
    tier = Tier(policy, startup_s, stream_s)
    for number, (seconds, users) in enumerate(phases):
        if number == restarted_in:
            policy.history = None
        tier.run(seconds, users)
    last_users = phases[-1][1] if phases else 0
    # NOTE: streams outlive the phase that started them; until they end they count as load.
    tier.run(math.ceil(stream_s), last_users)
    begin = policy.now
    tier.run(300, last_users)

    assert all(how.min <= after <= how.max for _, _, after in tier.changes)
    for index, (at, before, after) in enumerate(tier.changes):
        for earlier_at, earlier_before, earlier_after in tier.changes[:index]:
            if earlier_after > earlier_before and after < min(before, earlier_after):
                assert at - earlier_at > how.downscale_delay_s - 1, "added for nothing"
            if earlier_after < earlier_before and after > before:
                assert at - earlier_at >= how.upscale_delay_s, "drained for nothing"

    assert len({after > before for at, before, after in tier.changes if at > begin}) <= 1, "it turned round"
    num_changes = len(tier.changes)
    load = tier.demand(tier.serving()) / policy.replicas
    tier.run(100, last_users)
    assert len(tier.changes) == num_changes, "it rests under a load that stays"
    if policy.replicas < how.max:
        assert load <= how.target_load * (1 + how.tolerance) + 1e-6
    if policy.replicas > how.min:
        needed = last_users / tier.SEATS / how.target_load
        assert policy.replicas <= math.ceil(needed * (1 + how.tolerance) / (1 - how.tolerance)) + 1
