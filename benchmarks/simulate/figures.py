"""What was measured, in simulated time: rates, waits, GPUs, and whether the CPU was fast enough. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bars import Bar
from benchmarks.load.figures import Percentiles, percentiles
from benchmarks.load.window import Window
from benchmarks.simulate.pace import Sample
from benchmarks.simulate.plan import Deployment, Models
from benchmarks.summary import Interval, bootstrap, share

MOST_DISTORTION = 0.05
"""A figure is flagged where the CPU took more than this share of what a stream waited for."""
SLICES = 10
"""Equal parts of a window, whose spread is that of its rate."""
_SCALING_BAR = 0.9
_USED = 0.65
"""Share of the machine's cores that a run is to use, with whatever else runs."""
_LEAST_LEFT = 0.2
"""Of the cores, however much else runs."""
_LEAST_DILATION = 20.0


@dataclass(frozen=True, slots=True)
class MachineUse:
    """What the machine did during a window.

    Attributes:
        busy: Share of its cores that was in use, by whomever.
        clients_s: CPU time of the clients of all deployments of the stage.
    """

    busy: float
    clients_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One deployment under one setting; real seconds.

    Attributes:
        window: What clients saw.
        slices: Tokens that came in each of ten equal parts of it.
        tau: Tokens emitted in rounds with a draft, by such rounds, of responses that have ended.
        services: What the processes of its targets and drafters did meanwhile.
        routers: What those of its routers did.
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
    """The same in simulated seconds.

    Attributes:
        tokens_per_s: Of all clients together.
        slices: Of each tenth of the window.
        first: Time to the first token.
        inter_token: From token to token; tokens that come together share the wait for them.
        pause: Between arrivals, however many tokens come.
        draft_length: Draft tokens per round.
        completed: Responses that ended.
        gpus: Of targets and drafters.
        gpu_s: Seconds of a GPU for 1,000 tokens.
        outside: Share of a stream's time in which no service had a step of it: what the CPU took.
        late: What forwards took beyond what they were to take, by that.
        busy: Share of the machine's cores that was in use, by whomever.
        lag_ms: By which the services' event loops woke too late, on the average, in real time.
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
        """Share of what streams waited for that is the CPU's doing."""
        return abs(self.outside) + self.late

    @property
    def is_flagged(self) -> bool:
        """The CPU was too slow for this dilation: the figure says little of the deployment."""
        return self.distortion > MOST_DISTORTION


def summarize(measured: Measured, models: Models) -> Figures:
    """The figures of one deployment under one setting."""
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
        first=_simulated([(wait_s, 1) for wait_s in window.firsts_s], dilation),
        inter_token=_simulated([(gap_s / count, count) for gap_s, count in window.gaps], dilation),
        pause=_simulated([(gap_s, 1) for gap_s, _ in window.gaps], dilation),
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


def _simulated(waits: Sequence[tuple[float, int]], dilation: float) -> Percentiles | None:
    return percentiles([(wait_s / dilation, count) for wait_s, count in waits])


def scaling(large: Figures, small: Figures) -> Interval:
    """What the larger one gives, by so many times the smaller; with the noise of tenths of their windows."""
    times = large.deployment.targets / small.deployment.targets

    def ratio(pairs: Sequence[tuple[float, float]]) -> float:
        return share(sum(own for own, _ in pairs), times * sum(base for _, base in pairs))

    return bootstrap(list(zip(large.slices, small.slices, strict=True)), ratio)


def scaling_bars(sizes: Sequence[Figures]) -> list[Bar]:
    """The promise of the largest deployment, setting by setting.

    Args:
        sizes: Deployments of all sizes, with as many streams for each target.
    """
    most = max(each.deployment.targets for each in sizes)
    least = min(each.deployment.targets for each in sizes)
    bars = []
    for large in (each for each in sizes if each.deployment.targets == most):
        small = next(
            each for each in sizes if each.deployment.targets == least and each.setting == large.setting
        )
        name = f"{large.setting}: {most} replicas by {most} times {least}"
        if large.is_flagged or small.is_flagged:
            name += " (no verdict: the CPU was too slow)"
        bars.append(Bar(name, _SCALING_BAR, scaling(large, small)))
    return bars


def needed_dilation(targets: int, trial: Sequence[Measured], cores: int) -> float:
    """So that so many replicas leave the machine some headroom, by what a trial took of its CPU time.

    Args:
        targets: Replicas that are to be simulated at a time.
        trial: One deployment under several settings, each measured alone.
        cores: Of the machine.
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
