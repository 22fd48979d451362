"""Who chooses how long a response's drafts are, and what responses learn from each other of it."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from fly.clock import Clock
from fly.draft_length.acceptance import SurvivalPool
from fly.draft_length.goodput import GoodputLength
from fly.draft_length.load import RoundCosts
from fly.draft_length.policy import DraftLength, FixedLength
from fly.draft_length.trials import TrialBudget
from fly.rule import tail_length
from fly.types import DraftLengthPolicy
from router.replicas.pools import Replica
from router.requests.planning import SpeculationPlan

T = TypeVar("T")

_MAX_KEPT = 256


class DraftLengths:
    """What this router knows of rounds: their costs by target replica, what is kept by weights and rule.

    The drafters of a target's responses are taken to be alike. A response that fails over goes on with what
    it knows of its first target.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pools: _Recent[SurvivalPool] = _Recent()
        self._costs: _Recent[RoundCosts] = _Recent()
        self._trials: _Recent[TrialBudget] = _Recent()

    def of_response(self, plan: SpeculationPlan, target: Replica) -> DraftLength:
        """For one response at this target."""
        if plan.draft_length_policy is DraftLengthPolicy.FIXED or not plan.drafts:
            return FixedLength(plan.draft_length)
        weights = target.info.weight_fingerprint
        pool = self._pools.get(
            (weights, plan.rule, plan.draft_length),
            lambda: SurvivalPool(plan.draft_length, partial(tail_length, plan.rule)),
        )
        costs = self._costs.get(target.address, lambda: RoundCosts(self._clock))
        trials = self._trials.get((target.address, plan.rule), TrialBudget)
        return GoodputLength(pool, costs, trials, self._clock)


class _Recent(Generic[T]):
    """As many as are worth keeping, made when they are first asked for."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = make()
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]
