"""The pools from which the replica of a stream is picked."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence

from router.policies.base import Policy
from router.policies.request_key import RequestKey
from router.replicas.replica import Replica

Accepts = Callable[[Replica], bool]
"""Predicate: return True if a replica can be used."""

PAUSE_S = 0.1
"""Least time between two requests of a sequence to replicas that have all refused it."""


class ReplicaPool:
    """The replicas of one tier that may get new sequences."""

    def __init__(self, policy: Policy, is_required: bool = True, source: random.Random | None = None) -> None:
        """Select by `policy`, draw from `source`, by default from a new generator.

        If the tier is required, fall back to a half-open replica if no other is left.
        """
        self._policy = policy
        self._is_required = is_required
        self._source = source or random.Random()
        self._replicas: list[Replica] = []
        self._changed = asyncio.Event()

    @property
    def replicas(self) -> Sequence[Replica]:
        return tuple(self._replicas)

    def add(self, replica: Replica) -> None:
        self._replicas.append(replica)
        self._changed.set()
        self._changed = asyncio.Event()

    def remove(self, replica: Replica) -> None:
        """Remove a replica, if it is in the pool."""
        if replica in self._replicas:
            self._replicas.remove(replica)

    def ready(self, accepts: Accepts) -> list[Replica]:
        """Return the replicas that are not broken and are accepted."""
        return [r for r in self._replicas if not r.is_broken.is_set() and accepts(r)]

    def pick(self, accepts: Accepts, key: RequestKey = (), is_needed: bool = False) -> Replica | None:
        """Return the replica of the next sequence, chosen by the policy; None if no replica is accepted.

        If one `is_needed` and no other has a place, a half-open replica gets more than one sequence.
        """
        candidates = self._candidates(accepts)
        if is_needed and not candidates:
            candidates = [replica for replica in self.ready(accepts) if not replica.is_full]
        return self._policy.choose(candidates, key) if candidates else None

    def draw(self, accepts: Accepts) -> Replica | None:
        """Return a replica that `pick` could return, drawn in proportion to the places, free or not.

        It stands for all replicas with its weights, which so get their share of the requests. Weights with
        which every request fails at once would draw nearly all of them by their free places.
        """
        candidates = self._candidates(accepts)
        shares = [max(1, replica.places or 0) for replica in candidates]
        return self._source.choices(candidates, shares)[0] if candidates else None

    def _candidates(self, accepts: Accepts) -> list[Replica]:
        """Return the accepted replicas that may get the next sequence.

        A half-open replica gets one sequence at a time and a full one none, unless the tier is required and
        no other is accepted. One that is left out gets none, unless no other is ready.
        """
        ready = self.ready(accepts)
        ready = [replica for replica in ready if not replica.is_left_out] or ready
        usable = [replica for replica in ready if not (replica.is_half_open and replica.in_flight)]
        candidates = [replica for replica in usable if not replica.is_full]
        if self._is_required:
            candidates = candidates or usable or ready
        return candidates

    async def pause(self, accepts: Accepts) -> None:
        """Wait a moment if all accepted replicas that are ready have refused a sequence.

        The router's queue counts the places of all replicas, also of those that are not accepted.
        """
        if all(replica.has_refused for replica in self.ready(accepts)):
            await asyncio.sleep(PAUSE_S)

    async def wait(self, accepts: Accepts, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for an accepted replica; return True if there is one."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready(accepts):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


def any_replica(replica: Replica) -> bool:
    """Accept every replica."""
    return True


def with_room(num_tokens: int) -> Accepts:
    """Return a predicate that accepts replicas whose context and memory hold a sequence of this length."""
    return lambda replica: not 0 < replica.info.context_length < num_tokens


def roomiest(replicas: Sequence[Replica]) -> Replica:
    """Return the first replica that holds the longest sequence; at least one must be given."""
    return max(replicas, key=lambda replica: replica.info.context_length or math.inf)


def with_weights(fingerprint: str) -> Accepts:
    """Return a predicate that accepts replicas with these weights; an empty fingerprint accepts all."""
    if not fingerprint:
        return any_replica
    return lambda replica: replica.info.weight_fingerprint == fingerprint


def with_kernels(kernels: str, accepts: Accepts) -> Accepts:
    """Return a predicate that accepts of the accepted replicas those with these kernels; "" accepts all."""
    if not kernels:
        return accepts
    return lambda replica: accepts(replica) and replica.info.kernels == kernels
