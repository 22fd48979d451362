"""Endpoints of replicas, as a registry lists them."""

from dataclasses import dataclass

from flyserve.core.messages import Role


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One service replica.

    Attributes:
        role: Tier of the replica.
        address: host:port of its gRPC server.
        replica: Name of the replica, stable over restarts.
        generation: Increases each time the replica is restarted.
        draining: The replica accepts no new sequences and finishes those that it has.
    """

    role: Role
    address: str
    replica: str = ""
    generation: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All endpoints at one time; `generation` increases with every change."""

    generation: int = 0
    endpoints: tuple[Endpoint, ...] = ()
