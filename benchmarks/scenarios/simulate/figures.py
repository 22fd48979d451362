"""The figures of a deployment in simulated time, and whether the CPU was fast enough for them. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.load import Window
from benchmarks.harness.statistics import Goal, Percentiles, percentiles
from benchmarks.scenarios.simulate.pace import Sample
from benchmarks.scenarios.simulate.plan import Deployment, Models
from flyserve.bench.statistics import Interval, bootstrap, share

MOST_DISTORTION = 0.05
"""A figure is flagged if the CPU took more than this share of what a stream waited for."""
SLICES = 10
"""Equal parts of a window; their spread is that of its rate."""
_SCALING_GOAL = 0.9
_USED, _LEAST_LEFT = 0.65, 0.2
"""Share of the machine's cores for a run and everything else, and for the run alone if much else runs."""
_LEAST_DILATION = 20.0


@dataclass(frozen=True, slots=True)
class MachineUse:
    """The use of the machine during a window.

    Attributes:
        busy: Share of its cores in use, by all processes.
        clients_s: CPU time of the clients of all deployments of the stage.
    """

    busy: float
    clients_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One deployment under one setting; real seconds.

    Attributes:
        window: What the clients received.
        slices: Tokens in each of ten equal parts of the window.
        tau: Tokens emitted in rounds with a draft per such round, of responses that have ended.
        services: Activity of the processes of its targets and drafters.
        routers: Activity of the processes of its routers.
    """

    deployment: Deployment
    setting: str
    dilation: float
    window: Window
    slices: tuple[int, ...]
    tau: float
    services: Sample
    routers: Sample
    machine: MachineUse


@dataclass(frozen=True, slots=True)
class Figures:
    """One deployment under one setting; simulated seconds.

    Attributes:
        tokens_per_s: Rate of all clients together.
        slices: Rate of each tenth of the window.
        first: Time to the first token.
        inter_token: Time from token to token; tokens that arrive together share the wait.
        pause: Time between arrivals.
        draft_length: Draft tokens per round.
        completed: Responses that ended.
        gpus: GPUs of targets and drafters.
        gpu_s: GPU seconds per 1,000 tokens.
        outside: Share of a stream's time in which no service had a step of it: the time that the CPU took.
        late: Time that forwards took beyond their cost, as a share of their cost.
        busy: Share of the machine's cores in use, by all processes.
        lag_ms: Mean delay with which the services' event loops woke up, in real time.
    """

    deployment: Deployment
    setting: str
    dilation: float
    tokens_per_s: float
    slices: tuple[float, ...]
    first: Percentiles | None
    inter_token: Percentiles | None
    pause: Percentiles | None
    tau: float
    draft_length: float
    completed: int
    gpus: int
    gpu_s: float
    outside: float
    late: float
    busy: float
    lag_ms: float

    @property
    def distortion(self) -> float:
        """Share of the streams' waits that the CPU caused."""
        return abs(self.outside) + self.late

    @property
    def is_flagged(self) -> bool:
        """True if the CPU was too slow for this dilation: the figure says little about the deployment."""
        return self.distortion > MOST_DISTORTION


def summarize(measured: Measured, models: Models) -> Figures:
    """Return the figures of one deployment under one setting."""
    window, dilation, services = measured.window, measured.dilation, measured.services
    tokens_per_s = window.tokens_per_s * dilation
    gpus = measured.deployment.num_gpus(measured.setting, models)
    waited_s = measured.deployment.streams * services.at_s
    return Figures(
        deployment=measured.deployment,
        setting=measured.setting,
        dilation=dilation,
        tokens_per_s=tokens_per_s,
        slices=tuple(tokens * SLICES / window.seconds * dilation for tokens in measured.slices),
        first=percentiles([(wait_s / dilation, 1) for wait_s in window.firsts_s]),
        inter_token=percentiles([(gap_s / count / dilation, count) for gap_s, count in window.gaps]),
        pause=percentiles([(gap_s / dilation, 1) for gap_s, _ in window.gaps]),
        tau=measured.tau,
        draft_length=share(window.drafted, window.rounds),
        completed=window.completed,
        gpus=gpus,
        gpu_s=share(1000 * gpus, tokens_per_s),
        outside=1 - (services.verify_s + services.draft_s) / waited_s,
        late=share(services.late_s, services.asked_s),
        busy=measured.machine.busy,
        lag_ms=1e3 * share(services.lag_s, services.probes),
    )


def scaling(large: Figures, small: Figures) -> Interval:
    """Return the rate of the larger deployment divided by as many times the smaller one's as it is larger."""
    factor = large.deployment.targets / small.deployment.targets

    def ratio(pairs: Sequence[tuple[float, float]]) -> float:
        return share(sum(own for own, _ in pairs), factor * sum(base for _, base in pairs))

    return bootstrap(list(zip(large.slices, small.slices, strict=True)), ratio)


def scaling_goals(sizes: Sequence[Figures]) -> list[Goal]:
    """Return the goal of the largest deployment, setting by setting.

    Args:
        sizes: Deployments of all sizes, with the same number of streams per target.
    """
    targets = [each.deployment.targets for each in sizes]
    most, least, goals = max(targets), min(targets), []
    smallest = {each.setting: each for each in sizes if each.deployment.targets == least}
    for large in (each for each in sizes if each.deployment.targets == most):
        small = smallest[large.setting]
        name = f"{large.setting}: {most} replicas by {most} times {least}"
        if large.is_flagged or small.is_flagged:
            name += " (no verdict: the CPU was too slow)"
        goals.append(Goal(name, _SCALING_GOAL, scaling(large, small)))
    return goals


def needed_dilation(targets: int, trial: Sequence[Measured], cores: int) -> float:
    """Return the dilation at which this many replicas leave the machine some headroom.

    Args:
        targets: Replicas that are simulated at a time.
        trial: One deployment under several settings, each measured alone.
        cores: Cores of the machine.
    """
    needed = 0.0
    for each in trial:
        seconds = each.window.seconds
        own_s = each.services.cpu_s + each.routers.cpu_s + each.machine.clients_s
        others = max(0.0, each.machine.busy - own_s / (seconds * cores))
        left = max(_LEAST_LEFT, _USED - others) * cores
        own_per_target = own_s / seconds * each.dilation / each.deployment.targets
        needed = max(needed, own_per_target * targets / left)
    return max(_LEAST_DILATION, float(math.ceil(needed)))
