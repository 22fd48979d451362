"""The nouns of the controller: an instance, its phase, the failures of earlier instances, and a node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from flyserve.core.messages import Load, ModelInfo, Role
from orchestration.deployment.plan import ReplicaSpec


class Phase(StrEnum):
    """The phase of an instance's life."""

    STARTING = "starting"
    READY = "ready"
    UNREACHABLE = "unreachable"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True, slots=True, order=True)
class InstanceKey:
    """The identity of an instance: its replica's name, which restarts keep, and the number of the start."""

    replica: str
    generation: int

    def __str__(self) -> str:
        return f"{self.replica}.{self.generation}"


@dataclass(frozen=True, slots=True)
class Instance:
    """One start of a replica; its spec never changes.

    Attributes:
        generation: Number of this start of the replica; no two instances of a replica share one.
        since: Clock reading at the start of this phase.
        address: host:port of its server, once known.
        node: Id of the node that was chosen for it, later of the node that it runs on; empty if unknown.
        waiting_for: The reason why it cannot start yet, in one line.
        is_marked_for_replacement: It will be replaced although its spec is up to date.
        load: The load that it reported last.
        info: The model that it serves; None if it does not report one.
    """

    spec: ReplicaSpec
    generation: int
    phase: Phase = Phase.STARTING
    since: float = 0.0
    address: str = ""
    node: str = ""
    waiting_for: str = ""
    is_marked_for_replacement: bool = False
    load: Load = field(default_factory=Load)
    info: ModelInfo | None = None

    @property
    def key(self) -> InstanceKey:
        return InstanceKey(self.spec.replica, self.generation)

    @property
    def role(self) -> Role:
        return self.spec.role

    @property
    def is_listed(self) -> bool:
        """True if the registry lists it."""
        return self.phase in (Phase.READY, Phase.DRAINING) and bool(self.address)


@dataclass(frozen=True, slots=True)
class ReplicaHistory:
    """The outcome of a replica's instances so far.

    Attributes:
        generation: Generation of the latest instance.
        failures: Number of consecutive lost instances, none of which had served for long.
        retry_at: Clock reading before which no other instance is started.
        fault: The reason why the latest instance was lost; empty once another one serves.
        is_rejection: The latest instance was rejected because of its configuration or its model.
        avoid: Id of the node that the next instance should avoid.
    """

    generation: int = 0
    failures: int = 0
    retry_at: float = 0.0
    fault: str = ""
    is_rejection: bool = False
    avoid: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that can run actors.

    Attributes:
        id: Ray's node id.
        name: Name to show to people.
        resources: Total amounts by Ray's names: CPU, GPU, and resources that mark the node.
    """

    id: str
    name: str
    resources: Mapping[str, float]
