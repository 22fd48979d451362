"""The draft length policy of each response, and the statistics that responses share for it."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from fly.clock import Clock
from fly.comparison import Turn
from fly.draft_length.acceptance import AcceptancePool
from fly.draft_length.draft_gain import DraftGain
from fly.draft_length.exploration import Exploration
from fly.draft_length.goodput import GoodputLength
from fly.draft_length.lookup_costs import LookupCosts
from fly.draft_length.policy import DraftLength, FixedLength
from fly.draft_length.round_time import RoundTimes
from fly.rule import tail_length
from fly.types import DraftLengthPolicy
from router.replicas.pools import Replica
from router.requests.planning import SpeculationPlan

T = TypeVar("T")

_MAX_ENTRIES = 256


class DraftLengths:
    """A factory of draft length policies, with the statistics that they share.

    Round times and costs of look-ups are shared by target replica, acceptance by weights, rule and draft
    length. All drafters of a target's responses are assumed to be alike. A response that fails over to
    another target keeps the statistics of its first target.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pools: _LruCache[AcceptancePool] = _LruCache()
        self._round_times: _LruCache[RoundTimes] = _LruCache()
        self._exploration: _LruCache[Exploration] = _LruCache()
        self._turn = Turn()
        self._gains: _LruCache[DraftGain] = _LruCache()
        self._lookup_costs: _LruCache[LookupCosts] = _LruCache()

    def for_response(self, plan: SpeculationPlan, target: Replica, looks_up: bool) -> DraftLength:
        """Return the policy of one response at this target.

        A drafter that `looks_up` tokens chooses the length of each draft by its match, whatever the policy.
        """
        if looks_up or plan.draft_length_policy is DraftLengthPolicy.FIXED or not plan.drafts:
            return FixedLength(plan.draft_length)
        kind = (target.info.weight_fingerprint, plan.rule, plan.draft_length)
        return GoodputLength(
            pool=self._pools.get(
                kind,
                lambda: AcceptancePool(plan.draft_length, partial(tail_length, plan.rule)),
            ),
            round_times=self._round_times.get(target.address, lambda: RoundTimes(self._clock)),
            exploration=self._exploration.get((target.address, plan.rule), Exploration),
            gain=self._gains.get(kind, lambda: DraftGain(self._turn)),
            clock=self._clock,
        )

    def lookup_costs(self, target: Replica) -> LookupCosts:
        """Return what steps at this target take, with drafts that were looked up and without drafts."""
        return self._lookup_costs.get(target.address, LookupCosts)


class _LruCache(Generic[T]):
    """The most recently used entries; a missing entry is created on first use."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._entries:
            self._entries[key] = make()
            if len(self._entries) > _MAX_ENTRIES:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return self._entries[key]
