"""How a replica is shared by several processes."""

from dataclasses import dataclass

HEARTBEATS_PER_TIMEOUT = 4
_LONGEST_HEARTBEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class Sharding:
    """The process group of one replica.

    Attributes:
        shards: Its processes, the leader among them.
        timeout_s: Within which every rank takes part in a collective; else the group is broken.
        start_timeout_s: Within which all ranks have met, and then have loaded their weights.
    """

    shards: int
    timeout_s: float = 60.0
    start_timeout_s: float = 600.0

    @property
    def heartbeat_s(self) -> float:
        """How long followers may be left without a plan; also, how soon an idle leader misses one of them."""
        return min(self.timeout_s / HEARTBEATS_PER_TIMEOUT, _LONGEST_HEARTBEAT_S)
