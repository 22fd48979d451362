"""The status of a deployment with one replica that serves and one that has failed."""

from flyserve.core.messages import Load, Role
from orchestration.control.status import DeploymentStatus, ReplicaState, ReplicaStatus, TierStatus

READY = ReplicaStatus(
    Role.TARGET,
    "target-0",
    ReplicaState.READY,
    "10.0.0.1:50100",
    3,
    node="10.0.0.1 (ab12)",
    load=Load(sequences=5, queued=2, kv_used=50, kv_capacity=200),
    since_s=7.0,
)
FAILED = ReplicaStatus(
    Role.TARGET, "target-1", ReplicaState.FAILED, detail="/m: no weights", remedy="correct it", generation=9
)


def status(*replicas: ReplicaStatus) -> DeploymentStatus:
    tiers = (TierStatus(Role.TARGET, 2, 1, 1),)
    return DeploymentStatus("main", "10.0.0.1:7", 2, tiers, replicas, ("look at this",))
