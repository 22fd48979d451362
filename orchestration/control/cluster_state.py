"""What is known of every instance, as it is started, observed and ended. Pure: no clock, no Ray."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fly.messages import Endpoint, Load
from orchestration.control.instances import Instance, Key, Phase, Slot
from orchestration.deployment.plan import ReplicaSpec

_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 30.0
_STABLE_S = 10.0
"""Who has served for so long is restarted as if it had never failed."""


class Ledger:
    """The instances by key and the slots by replica; every time is a reading of the caller's clock."""

    def __init__(self, instances: Iterable[Instance] = (), slots: Mapping[str, Slot] | None = None) -> None:
        self.instances = {instance.key: instance for instance in instances}
        self.slots: dict[str, Slot] = dict(slots or {})

    def slot(self, replica: str) -> Slot:
        return self.slots.get(replica, Slot())

    def start(self, spec: ReplicaSpec, now: float) -> Instance:
        """Enters the next instance of a replica."""
        slot = self.slot(spec.replica)
        self.slots[spec.replica] = replace(slot, generation=slot.generation + 1)
        instance = Instance(spec, slot.generation + 1, since=now)
        self.instances[instance.key] = instance
        return instance

    def drain(self, key: Key, now: float) -> None:
        """It takes no new sequences from now on."""
        self._enter(key, Phase.DRAINING, now)

    def condemn(self, key: Key) -> None:
        """It is to be replaced, on another node where possible."""
        instance = self.instances[key]
        self.instances[key] = replace(instance, is_condemned=True)
        self.slots[key.replica] = replace(self.slot(key.replica), avoid=instance.node)

    def forget(self, key: Key) -> None:
        """Its processes are being ended."""
        self.instances.pop(key, None)

    def placed(self, key: Key, node: str) -> None:
        """It runs, or is meant to run, on this node."""
        self._change(key, node=node)

    def waits(self, key: Key, reason: str) -> None:
        """It cannot start yet."""
        self._change(key, waits_for=reason)

    def ready(self, key: Key, address: str, now: float) -> None:
        """It serves at `address`."""
        instance = self.instances.get(key)
        if instance is None or instance.phase in (Phase.DRAINING, Phase.LOST):
            return
        if instance.phase is not Phase.READY:
            self._enter(key, Phase.READY, now)
        self._change(key, address=address, waits_for="")
        slot = self.slot(key.replica)
        if slot.fault or slot.avoid:
            self.slots[key.replica] = replace(slot, fault="", is_rejection=False, avoid="")

    def loaded(self, key: Key, load: Load) -> None:
        """It carries this at present."""
        self._change(key, load=load)

    def unreachable(self, key: Key, now: float) -> None:
        """It served, and does not answer any more."""
        instance = self.instances.get(key)
        if instance is not None and instance.phase is Phase.READY:
            self._enter(key, Phase.UNREACHABLE, now)

    def lost(self, key: Key, fault: str, now: float, is_rejection: bool = False) -> None:
        """It will not serve again; another may be started after a while that grows from time to time."""
        instance = self.instances.get(key)
        if instance is None or instance.phase is Phase.LOST:
            return
        self._enter(key, Phase.LOST, now)
        if instance.phase is Phase.DRAINING:
            return
        slot = self.slot(key.replica)
        was_stable = instance.phase is Phase.READY and now - instance.since >= _STABLE_S
        failures = 0 if was_stable else slot.failures
        wait_s = min(_FIRST_RETRY_S * 2**failures, _LONGEST_RETRY_S)
        self.slots[key.replica] = replace(
            slot,
            failures=min(failures + 1, 16),
            retry_at=now + wait_s,
            fault=fault,
            is_rejection=is_rejection,
            avoid=instance.node,
        )

    def settle(self, desired: Iterable[str]) -> None:
        """Forgets the faults of replicas that are desired no more; their generations go on."""
        wanted = set(desired)
        for replica, slot in self.slots.items():
            if replica not in wanted:
                self.slots[replica] = Slot(slot.generation)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """What routers are told."""
        return tuple(
            Endpoint(
                instance.role,
                instance.address,
                key.replica,
                instance.generation,
                instance.phase is Phase.DRAINING,
            )
            for key, instance in sorted(self.instances.items())
            if instance.is_listed
        )

    def _enter(self, key: Key, phase: Phase, now: float) -> None:
        if key in self.instances:
            self.instances[key] = replace(self.instances[key], phase=phase, since=now)

    def _change(self, key: Key, **fields: object) -> None:
        if key in self.instances:
            self.instances[key] = replace(self.instances[key], **fields)  # type: ignore[arg-type]
