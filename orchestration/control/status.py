"""What people are told of a deployment: every replica, its state, its last fault and the remedy. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fly.messages import Load, Role
from orchestration.control.autoscalers import AutoscalingStatus
from orchestration.control.cluster_state import Ledger
from orchestration.control.instances import Instance, Phase, Slot
from orchestration.deployment.plan import ReplicaSpec


class State(StrEnum):
    """How a replica is."""

    STARTING = "starting"
    PENDING = "pending"
    READY = "ready"
    UNREACHABLE = "unreachable"
    RESTARTING = "restarting"
    FAILED = "failed"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, or an instance of it that is let go.

    Attributes:
        role: Its tier.
        replica: Its name.
        state: How it is.
        address: host:port while it is listed, else empty.
        generation: Times that it was started.
        detail: Its last fault, or what it waits for, in one line.
        remedy: What helps against that, in one line.
        node: Where it runs, for people.
        load: What it last said that it carries.
        since_s: Seconds that it has been in this state.
        is_current: It is as the deployment says; else it is being replaced.
    """

    role: Role
    replica: str
    state: State
    address: str = ""
    generation: int = 0
    detail: str = ""
    remedy: str = ""
    node: str = ""
    load: Load = field(default_factory=Load)
    since_s: float = 0.0
    is_current: bool = True


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier.

    Attributes:
        desired: Replicas that should serve.
        ready: Those that serve and are as the deployment says.
        outdated: Replicas that are still to be replaced.
        autoscaling: How their number follows the load; None where it does not.
    """

    role: Role
    desired: int
    ready: int
    outdated: int
    autoscaling: AutoscalingStatus | None = None


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """A whole deployment.

    Attributes:
        name: Of the deployment.
        registry: host:port of the registry.
        controller_starts: Times that its controller was started.
        tiers: In order of their roles.
        replicas: Tier by tier.
        notes: What else a person should know, each with its remedy.
    """

    name: str
    registry: str
    controller_starts: int
    tiers: tuple[TierStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    notes: tuple[str, ...] = ()


def tiers(
    desired: Sequence[ReplicaSpec], ledger: Ledger, autoscaling: Mapping[Role, AutoscalingStatus]
) -> tuple[TierStatus, ...]:
    """Every tier that is desired or still runs."""
    wanted = {spec.replica: spec for spec in desired}
    there = {spec.role for spec in desired} | {i.role for i in ledger.instances.values()}

    def status(role: Role) -> TierStatus:
        own = [i for i in ledger.instances.values() if i.role is role and i.phase is not Phase.DRAINING]
        current = [i for i in own if _is_current(i, wanted)]
        ready = sum(i.phase is Phase.READY for i in current)
        number = sum(spec.role is role for spec in desired)
        return TierStatus(role, number, ready, len(own) - len(current), autoscaling.get(role))

    return tuple(status(role) for role in Role if role in there)


def replicas(
    desired: Sequence[ReplicaSpec], ledger: Ledger, now: float, nodes: Mapping[str, str]
) -> tuple[ReplicaStatus, ...]:
    """Every replica, desired or still there; `nodes` has the names of the nodes by their ids."""
    wanted = {spec.replica: spec for spec in desired}
    rows = [
        _of_instance(instance, ledger.slot(key.replica), now, nodes, _is_current(instance, wanted))
        for key, instance in ledger.instances.items()
    ]
    there = {key.replica for key in ledger.instances}
    rows += [
        _of_nothing(spec, ledger.slot(spec.replica), now) for spec in desired if spec.replica not in there
    ]
    order = list(Role)
    return tuple(sorted(rows, key=lambda row: (order.index(row.role), row.replica, row.generation)))


def _of_instance(
    instance: Instance, slot: Slot, now: float, nodes: Mapping[str, str], is_current: bool
) -> ReplicaStatus:
    state, detail = _state(instance, slot)
    return ReplicaStatus(
        role=instance.role,
        replica=instance.key.replica,
        state=state,
        address=instance.address if instance.is_listed else "",
        generation=instance.generation,
        detail=detail,
        remedy=_remedy(state, instance.spec),
        node=nodes.get(instance.node, instance.node),
        load=instance.load,
        since_s=now - instance.since,
        is_current=is_current,
    )


def _of_nothing(spec: ReplicaSpec, slot: Slot, now: float) -> ReplicaStatus:
    """A replica between two tries, or before its first."""
    state = State.STARTING
    if slot.fault:
        state = State.FAILED if slot.is_rejection else State.RESTARTING
    detail = slot.fault
    if detail and (wait_s := slot.retry_at - now) > 1:
        detail += f" (tried again in {wait_s:.0f} s)"
    return ReplicaStatus(
        spec.role, spec.replica, state, generation=slot.generation, detail=detail, remedy=_remedy(state, spec)
    )


def _state(instance: Instance, slot: Slot) -> tuple[State, str]:
    """With what there is to say of it."""
    if instance.phase is Phase.STARTING:
        if instance.waits_for:
            return State.PENDING, instance.waits_for
        if slot.fault:
            return (State.FAILED if slot.is_rejection else State.RESTARTING), slot.fault
        return State.STARTING, ""
    if instance.phase is Phase.LOST:
        return State.RESTARTING, slot.fault
    return State(instance.phase.value), ""


def _is_current(instance: Instance, wanted: Mapping[str, ReplicaSpec]) -> bool:
    return wanted.get(instance.key.replica) == instance.spec and not instance.is_condemned


def _remedy(state: State, spec: ReplicaSpec) -> str:
    tier = spec.role.value
    match state:
        case State.PENDING:
            return (
                f"add a node with {spec.total_cpus:g} free CPUs, lower {' or '.join(_size_keys(spec))},"
                f" or scale: flyserve scale {tier}=N; to replace without room for both: rollout.surge: 0"
            )
        case State.FAILED:
            return (
                f"correct what is said of {tier} and apply again; a model's folder must be on every node,"
                " or the model come from the hub as org/name@revision"
            )
        case State.RESTARTING:
            return f"if it goes on, Ray's logs of its node say more: worker-*.err of {tier}'s actor"
        case _:
            return ""


def _size_keys(spec: ReplicaSpec) -> Iterator[str]:
    yield f"{spec.role.value}.threads"
    if spec.shards > 1:
        yield f"{spec.role.value}.shards"
