"""The logical CPUs of a deployment on this machine. Pure."""

import math
from collections.abc import Sequence

from flyserve.core.messages import Role
from orchestration.deployment.plan import ReplicaSpec, total_cpus

_SPARE_CPUS = 32
"""Logical CPUs in addition to those of the replicas and their successors, for scaling the deployment."""


def logical_cpus(specs: Sequence[ReplicaSpec], surge: int) -> int:
    """Return the CPUs that Ray gets: room for all replicas, and for `surge` successors in each tier."""
    largest: dict[Role, float] = {}
    for spec in specs:
        largest[spec.role] = max(spec.total_cpus, largest.get(spec.role, 0.0))
    return math.ceil(total_cpus(specs) + surge * sum(largest.values())) + _SPARE_CPUS
