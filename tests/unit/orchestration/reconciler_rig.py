"""What is desired, and instances that a test moves along, without a manager."""

from fly.messages import Role
from orchestration.control.cluster_state import Ledger
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
    """Instances that a test moves along."""

    def __init__(self, rollout: RolloutConfig = SURGE) -> None:
        self.ledger, self.rollout, self.now = Ledger(), rollout, 100.0
        self.desired: tuple[ReplicaSpec, ...] = ()

    def decide(self) -> list[Action]:
        actions = decide(self.desired, self.ledger, self.now, self.rollout)
        for action in actions:
            apply(action, self.ledger, self.now)
        return actions

    def serve(self, *desired: ReplicaSpec) -> "Scene":
        """Everything desired is ready."""
        self.desired = desired
        self.decide()
        self.make_ready()
        assert not self.decide()
        return self

    def make_ready(self) -> None:
        for key, instance in self.ledger.instances.items():
            if instance.phase is Phase.STARTING:
                self.ledger.ready(key, f"h:{key.replica}.{key.generation}", self.now)
