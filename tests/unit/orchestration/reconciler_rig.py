"""Desired replicas, and instances that a test moves from phase to phase, without a manager."""

from flyserve.core.messages import Role
from orchestration.control.cluster_state import ClusterState
from orchestration.control.instances import Phase
from orchestration.control.reconciler import Action, apply, decide
from orchestration.deployment.file import RolloutConfig
from orchestration.deployment.plan import ReplicaSpec

SURGE = RolloutConfig(surge=1, drain_s=30)


def specs(number: int, weights: str = "a", role: Role = Role.TARGET) -> tuple[ReplicaSpec, ...]:
    return tuple(
        ReplicaSpec(role, f"{role}-{index}", "m:C", 1.0, {"model": weights}) for index in range(number)
    )


class Scene:
    """Instances that a test moves from phase to phase."""

    def __init__(self, rollout: RolloutConfig = SURGE) -> None:
        self.cluster, self.rollout, self.now = ClusterState(), rollout, 100.0
        self.desired: tuple[ReplicaSpec, ...] = ()

    def decide(self) -> list[Action]:
        actions = decide(self.desired, self.cluster, self.now, self.rollout)
        for action in actions:
            apply(action, self.cluster, self.now)
        return actions

    def serve(self, *desired: ReplicaSpec) -> "Scene":
        """Bring all desired replicas to ready."""
        self.desired = desired
        self.decide()
        self.make_ready()
        assert not self.decide()
        return self

    def make_ready(self) -> None:
        for key, instance in self.cluster.instances.items():
            if instance.phase is Phase.STARTING:
                self.cluster.mark_ready(key, f"h:{key.replica}.{key.generation}", self.now)
