"""The nouns of orchestration: an instance of a replica, how far it is, and what became of those before it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fly.messages import Load, Role
from orchestration.deployment.plan import ReplicaSpec


class Phase(StrEnum):
    """How far an instance is."""

    STARTING = "starting"
    READY = "ready"
    UNREACHABLE = "unreachable"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which instance: a replica keeps its name over restarts, and counts them."""

    replica: str
    generation: int

    def __str__(self) -> str:
        return f"{self.replica}.{self.generation}"


@dataclass(frozen=True, slots=True)
class Instance:
    """One start of a replica; its spec never changes.

    Attributes:
        spec: What was started.
        generation: Of its replica; no two instances of a replica have the same.
        phase: How far it is.
        since: Clock reading when it came to be in this phase.
        address: host:port of its server, once known.
        node: Id of the node that it was meant for, then of the one that it runs on; empty where unknown.
        waits_for: What keeps it from starting, in one line.
        is_condemned: It is to be replaced, although nothing about it is out of date.
        load: What it last said that it carries.
    """

    spec: ReplicaSpec
    generation: int
    phase: Phase = Phase.STARTING
    since: float = 0.0
    address: str = ""
    node: str = ""
    waits_for: str = ""
    is_condemned: bool = False
    load: Load = field(default_factory=Load)

    @property
    def key(self) -> Key:
        return Key(self.spec.replica, self.generation)

    @property
    def role(self) -> Role:
        return self.spec.role

    @property
    def is_listed(self) -> bool:
        """Whether routers are told of it."""
        return self.phase in (Phase.READY, Phase.DRAINING) and bool(self.address)


@dataclass(frozen=True, slots=True)
class Slot:
    """What became of a replica's instances so far.

    Attributes:
        generation: Of the latest one.
        failures: Lost one after the other, none of which had served for long.
        retry_at: Clock reading before which no other is started.
        fault: Why the latest was lost; empty once another serves.
        is_rejection: It was rejected by its configuration or its model rather than lost.
        avoid: Node that the next one should not go to.
    """

    generation: int = 0
    failures: int = 0
    retry_at: float = 0.0
    fault: str = ""
    is_rejection: bool = False
    avoid: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that actors can run on.

    Attributes:
        id: Ray's.
        name: For people.
        num_cpus: Logical CPUs in all.
        others: Amounts of its other resources in all: of GPUs, and of those that mark it.
    """

    id: str
    name: str
    num_cpus: float
    others: Mapping[str, float] = field(default_factory=dict)

    def amount(self, resource: str) -> float:
        """Of a resource, as Ray names it."""
        return self.num_cpus if resource == "CPU" else self.others.get(resource, 0.0)
