"""Precedence: a lost replica gets its room back before others that wait for room are started. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from orchestration.control.cluster_state import ClusterState
from orchestration.control.instances import Instance, Phase
from orchestration.deployment.plan import ReplicaSpec

_PLACED_S = 3.0
"""An instance that has found no room reports so within this time after its start."""
_MAX_FAILURES = 3
"""A replica that failed more often in a row holds nothing up."""


def deferred(desired: Sequence[ReplicaSpec], cluster: ClusterState, now: float) -> Mapping[str, str]:
    """Return the replicas whose start must wait, each with the lost replica that comes first.

    A lost replica comes first until it has found room again. Replicas wait for it that were not lost, have
    only instances that start, and ask for every resource that it needs: they would take its room. One that is
    replaced does not wait: its predecessor serves, or has just left room of its own.
    """
    instances: defaultdict[str, list[Instance]] = defaultdict(list)
    for instance in cluster.instances.values():
        instances[instance.key.replica].append(instance)
    lost = [spec for spec in desired if _is_restarting(spec, cluster, instances[spec.replica], now)]
    new = [spec for spec in desired if all(i.phase is Phase.STARTING for i in instances[spec.replica])]
    return dict(_waiting(new, cluster, lost))


def _waiting(
    new: Sequence[ReplicaSpec], cluster: ClusterState, lost: Sequence[ReplicaSpec]
) -> Iterator[tuple[str, str]]:
    for spec in new:
        if not cluster.history(spec.replica).fault:
            rival = next((other for other in lost if other.resources.keys() <= spec.resources.keys()), None)
            if rival is not None:
                yield spec.replica, rival.replica


def _is_restarting(
    spec: ReplicaSpec, cluster: ClusterState, instances: Sequence[Instance], now: float
) -> bool:
    """Return True if a replica was lost and has not found room since."""
    history = cluster.history(spec.replica)
    if not history.fault or history.is_rejection or history.failures > _MAX_FAILURES:
        return False
    present = [instance for instance in instances if instance.phase is not Phase.LOST]
    return all(i.phase is Phase.STARTING and (i.waiting_for or now - i.since < _PLACED_S) for i in present)
