"""The observed state of every instance, from its start to its end. Pure: no clock, no Ray."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from flyserve.core.endpoints import Endpoint
from orchestration.control.instances import Instance, InstanceKey, Phase, ReplicaHistory
from orchestration.deployment.plan import ReplicaSpec

_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 30.0
_MAX_COUNTED_FAILURES = 16
_STABLE_S = 10.0
"""A replica that has served for this long is restarted as if it had never failed."""


class ClusterState:
    """The instances by key and the histories by replica; every time is a reading of the caller's clock."""

    def __init__(
        self, instances: Iterable[Instance] = (), histories: Mapping[str, ReplicaHistory] | None = None
    ) -> None:
        self.instances = {instance.key: instance for instance in instances}
        self.histories: dict[str, ReplicaHistory] = dict(histories or {})

    def history(self, replica: str) -> ReplicaHistory:
        return self.histories.get(replica, ReplicaHistory())

    def add(self, spec: ReplicaSpec, now: float) -> Instance:
        """Add the next instance of a replica, to be started."""
        history = self.history(spec.replica)
        self.histories[spec.replica] = replace(history, generation=history.generation + 1)
        instance = Instance(spec, history.generation + 1, since=now)
        self.instances[instance.key] = instance
        return instance

    def remove(self, key: InstanceKey) -> None:
        """Remove an instance, whose processes are to be stopped."""
        self.instances.pop(key, None)

    def mark_draining(self, key: InstanceKey, now: float) -> None:
        """Record that an instance takes no new sequences from now on."""
        self._enter(key, Phase.DRAINING, now)

    def mark_for_replacement(self, key: InstanceKey) -> None:
        """Record that an instance must be replaced, on another node if possible."""
        instance = self.instances[key]
        self.instances[key] = replace(instance, is_marked_for_replacement=True)
        self.histories[key.replica] = replace(self.history(key.replica), avoid=instance.node)

    def record(self, key: InstanceKey, **fields: object) -> None:
        """Record what was observed of an instance: its node, its load, the reason why it cannot start yet."""
        if key in self.instances:
            self.instances[key] = replace(self.instances[key], **fields)  # type: ignore[arg-type]

    def mark_ready(self, key: InstanceKey, address: str, now: float) -> None:
        """Record that an instance serves at `address`."""
        instance = self.instances.get(key)
        if instance is None or instance.phase in (Phase.DRAINING, Phase.LOST):
            return
        if instance.phase is not Phase.READY:
            self._enter(key, Phase.READY, now)
        self.record(key, address=address, waiting_for="")
        history = self.history(key.replica)
        if history.fault or history.avoid:
            self.histories[key.replica] = replace(history, fault="", is_rejection=False, avoid="")

    def mark_unreachable(self, key: InstanceKey, now: float) -> None:
        """Record that an instance, which served before, does not answer."""
        instance = self.instances.get(key)
        if instance is not None and instance.phase is Phase.READY:
            self._enter(key, Phase.UNREACHABLE, now)

    def mark_lost(self, key: InstanceKey, fault: str, now: float, is_rejection: bool = False) -> None:
        """Record that an instance will not serve again; the next one may start after a growing delay."""
        instance = self.instances.get(key)
        if instance is None or instance.phase is Phase.LOST:
            return
        self._enter(key, Phase.LOST, now)
        if instance.phase is Phase.DRAINING:
            return
        history = self.history(key.replica)
        wait_s = min(_FIRST_RETRY_S * 2**history.failures, _LONGEST_RETRY_S)
        self.histories[key.replica] = replace(
            history,
            failures=min(history.failures + 1, _MAX_COUNTED_FAILURES),
            retry_at=now + wait_s,
            fault=fault,
            is_rejection=is_rejection,
            avoid=instance.node,
        )

    def clear_faults(self, desired: Iterable[str]) -> None:
        """Drop the faults of replicas that are no longer desired; their generations go on."""
        wanted = set(desired)
        for replica, history in self.histories.items():
            if replica not in wanted:
                self.histories[replica] = ReplicaHistory(history.generation)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints to list in the registry."""
        return tuple(
            Endpoint(
                role=instance.role,
                address=instance.address,
                replica=key.replica,
                generation=instance.generation,
                draining=instance.phase is Phase.DRAINING,
            )
            for key, instance in sorted(self.instances.items())
            if instance.is_listed
        )

    def _enter(self, key: InstanceKey, phase: Phase, now: float) -> None:
        """Record that an instance is in another phase from now on.

        NOTE: a replica that has served for long is past its failures when it stops serving, whatever comes
        next: an instance whose process ends is unreachable first, and lost only then.
        """
        instance = self.instances.get(key)
        if instance is not None and instance.phase is Phase.READY and now - instance.since >= _STABLE_S:
            self.histories[key.replica] = replace(self.history(key.replica), failures=0)
        self.record(key, phase=phase, since=now)
