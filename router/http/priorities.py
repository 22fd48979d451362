"""Priority of an HTTP request: vLLM's `priority`, or OpenAI's `service_tier`."""

from collections.abc import Mapping
from typing import NamedTuple

from flyserve.core.errors import InvalidRequest
from router.http.fields import GenerationFields
from router.http.objects import ServedTier

TIERS: Mapping[ServedTier, int] = {"flex": -1, "default": 0, "priority": 1}
"""Priorities of the service tiers; higher values run first."""

_SERVED: Mapping[str, ServedTier] = {
    **{tier: tier for tier in TIERS},
    **{"auto": "default", "scale": "default", "fast": "priority"},
}
"""Tier that is served, by the one that is requested."""


class Priority(NamedTuple):
    """Priority of a request.

    Attributes:
        value: Higher values run first, as everywhere but in `priority` of a body.
        tier: Service tier that the request gets; None if it names none.
    """

    value: int
    tier: ServedTier | None


def priority_of(body: GenerationFields, limit: int) -> Priority:
    """Return the priority of a request, between `-limit` and `limit`.

    A tier whose priority is beyond the limit is served as default. Raise InvalidRequest if `priority` is
    beyond it, or contradicts the tier.
    """
    tier = _tier(body, limit)
    if body.priority is None:
        return Priority(TIERS[tier or "default"], tier)
    if tier not in (None, "default"):
        found = f'is "{tier}", but priority is {body.priority}: give one of them'
        raise InvalidRequest.of("service_tier", found)
    if abs(body.priority) > limit:
        allowed = f"must be {-limit} to {limit} (router.limits.priority)"
        raise InvalidRequest.of("priority", f"is {body.priority}, {allowed}")
    return Priority(-body.priority, tier)


def _tier(body: GenerationFields, limit: int) -> ServedTier | None:
    asked = None if body.service_tier is None else _SERVED[body.service_tier]
    return "default" if asked is not None and abs(TIERS[asked]) > limit else asked
