"""The status of a deployment as shown to people: every replica's state, last fault and remedy. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from flyserve.core.break_even import break_even
from flyserve.core.messages import Load, ModelInfo, Role
from orchestration.control.autoscaler import AutoscalingStatus
from orchestration.control.cluster_state import ClusterState
from orchestration.control.instances import Instance, Phase
from orchestration.control.precedence import deferred
from orchestration.deployment.plan import ReplicaSpec
from services.common.sections import ENGINE


class ReplicaState(StrEnum):
    """The state of a replica."""

    STARTING = "starting"
    PENDING = "pending"
    READY = "ready"
    UNREACHABLE = "unreachable"
    RESTARTING = "restarting"
    FAILED = "failed"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, or an instance of it that drains.

    Attributes:
        address: host:port while the registry lists it, else empty.
        generation: Number of times that it was started.
        detail: Its last fault, an alarm of a router, the reason why it waits, or a limit of what it computes,
            in one line.
        remedy: How to fix that, in one line.
        node: Name of its node, to show to people.
        since_s: Seconds that it has been in this state.
        is_current: Its spec is up to date; else it is being replaced.
    """

    role: Role
    replica: str
    state: ReplicaState
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
        desired: Number of replicas that should serve.
        ready: Number of replicas that serve with an up-to-date spec.
        outdated: Number of replicas that still have to be replaced.
        autoscaling: Autoscaling state; None if the tier is not autoscaled.
        engine: Its engine; empty for the tier's first one, such as `builtin`.
    """

    role: Role
    desired: int
    ready: int
    outdated: int
    autoscaling: AutoscalingStatus | None = None
    engine: str = ""


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """A whole deployment.

    Attributes:
        registry: host:port of the registry.
        controller_starts: Number of times that its controller was started.
        notes: Other problems of the deployment, each with its remedy.
        speculation: The tau from which speculation pays, and the costs behind it; empty if unknown.
    """

    name: str
    registry: str
    controller_starts: int
    tiers: tuple[TierStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    notes: tuple[str, ...] = ()
    speculation: str = ""


def tiers(
    desired: Sequence[ReplicaSpec],
    rows: Sequence[ReplicaStatus],
    autoscaling: Mapping[Role, AutoscalingStatus],
) -> tuple[TierStatus, ...]:
    """Return the status of every tier that is desired or still runs, given that of its replicas."""
    return tuple(
        TierStatus(
            role=role,
            desired=sum(spec.role is role for spec in desired),
            ready=sum(row.state is ReplicaState.READY and row.is_current for row in own),
            outdated=sum(row.state is not ReplicaState.DRAINING and not row.is_current for row in own),
            autoscaling=autoscaling.get(role),
            engine=next((str(spec.config.get(ENGINE, "")) for spec in desired if spec.role is role), ""),
        )
        for role in Role
        if (own := [row for row in rows if row.role is role]) or role in autoscaling
    )


def replicas(
    desired: Sequence[ReplicaSpec],
    cluster: ClusterState,
    now: float,
    nodes: Mapping[str, str],
    alarms: Mapping[str, str],
) -> tuple[ReplicaStatus, ...]:
    """Return the status of every replica that is desired or still runs.

    `nodes` maps node ids to names; `alarms` has those of routers about replicas that serve.
    """
    started, first = {key.replica for key in cluster.instances}, deferred(desired, cluster, now)
    waits = {replica: f"it waits until {lost} has found room again" for replica, lost in first.items()}
    # A replica between two starts, or before the first, is shown as an instance that is just starting.
    missing = [
        Instance(
            spec,
            cluster.history(spec.replica).generation,
            since=now,
            waiting_for=waits.get(spec.replica, ""),
        )
        for spec in desired
        if spec.replica not in started
    ]

    def status(instance: Instance) -> ReplicaStatus:
        state, detail = _state(instance, cluster, now)
        return ReplicaStatus(
            role=instance.role,
            replica=instance.key.replica,
            state=state,
            address=instance.address if instance.is_listed else "",
            generation=instance.generation,
            detail=(state is ReplicaState.READY and alarms.get(instance.key.replica)) or detail,
            remedy=_remedy(state, instance.spec),
            node=nodes.get(instance.node, instance.node),
            load=instance.load,
            since_s=now - instance.since,
            is_current=instance.spec in desired and not instance.is_marked_for_replacement,
        )

    order = list(Role)
    rows = map(status, (*cluster.instances.values(), *missing))
    return tuple(sorted(rows, key=lambda row: (order.index(row.role), row.replica, row.generation)))


def speculation(instances: Iterable[Instance], draft_length: int) -> str:
    """Return the tau from which drafts of this length pay, in one line; empty if costs are unknown."""
    infos = {each.role: each.info for each in instances if each.info is not None}
    found = break_even(infos.get(Role.TARGET), infos.get(Role.DRAFTER), draft_length)
    return "" if found is None else found.describe()


def _state(instance: Instance, cluster: ClusterState, now: float) -> tuple[ReplicaState, str]:
    """Return an instance's state and its detail."""
    history = cluster.history(instance.key.replica)
    if instance.phase is Phase.LOST:
        return ReplicaState.RESTARTING, history.fault
    if instance.phase is not Phase.STARTING:
        targets = [each.info for each in cluster.instances.values() if each.role is Role.TARGET and each.info]
        limits = _limits(instance.info, targets) if instance.role is Role.TARGET and instance.info else ()
        return ReplicaState(instance.phase.value), ", ".join(limits)
    if instance.waiting_for:
        return ReplicaState.PENDING, instance.waiting_for
    if not history.fault:
        return ReplicaState.STARTING, ""
    wait_s = history.retry_at - now
    detail = f"{history.fault} (retried in {wait_s:.0f} s)" if wait_s > 1 else history.fault
    return ReplicaState.FAILED if history.is_rejection else ReplicaState.RESTARTING, detail


def _limits(info: ModelInfo, targets: Iterable[ModelInfo]) -> Iterator[str]:
    """Yield why tokens of a target may differ with its load, or from those of targets with its weights."""
    if not info.row_invariant:
        yield "row_invariant: false"
    alike = (each for each in targets if each.weight_fingerprint == info.weight_fingerprint)
    if any(each.kernels != info.kernels for each in alike):
        yield f"kernels {info.kernels[:8] or 'unknown'}, not those of all targets"


def _remedy(state: ReplicaState, spec: ReplicaSpec) -> str:
    tier = spec.role.value
    match state:
        case ReplicaState.PENDING:
            keys = f"{tier}.threads or {tier}.shards" if "shards" in spec.config else f"{tier}.threads"
            return (
                f"add a node with {spec.total_cpus:g} free CPUs, lower {keys},"
                f" or scale: flyserve scale {tier}=N; to replace without room for both: rollout.surge: 0"
            )
        case ReplicaState.FAILED:
            return (
                f"correct the section {tier} and apply again; a model's folder must be on every node,"
                " or the model come from the hub as org/name@revision"
            )
        case ReplicaState.RESTARTING:
            return f"if this repeats, see Ray's logs on its node: worker-*.err of {tier}'s actor"
        case _:
            return ""
