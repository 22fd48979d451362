"""The figures of a deployment in simulated time, and whether the CPU was fast enough for them. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.load import Window
from benchmarks.harness.report import Figure, Row, make_rows
from benchmarks.harness.statistics import Goal, percentiles
from benchmarks.scenarios.simulate.hosts import Sample
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
    models: Models
    setting: str
    dilation: float
    window: Window
    slices: tuple[int, ...]
    tau: float
    services: Sample
    routers: Sample
    machine: MachineUse


def _rate(m: Measured, tokens: float, share_of_window: float = 1.0) -> float:
    """Return tokens per simulated second of a part of the window."""
    return tokens / (m.window.seconds * share_of_window) * m.dilation


def _gpus(m: Measured) -> int:
    return m.deployment.num_gpus(m.setting, m.models)


def _outside(m: Measured) -> float:
    """Return the share of a stream's time in which no service had a step of it: the CPU took it."""
    return 1 - (m.services.verify_s + m.services.draft_s) / (m.deployment.streams * m.services.at_s)


def _late(m: Measured) -> float:
    """Return the time that forwards took beyond their cost, as a share of their cost."""
    return share(m.services.late_s, m.services.asked_s)


def _shown_distortion(distortion: float) -> str:
    return f"{distortion:.1%}{' !' if distortion > MOST_DISTORTION else ''}"


FIGURES: tuple[Figure[Measured], ...] = (
    Figure("deployment", lambda m: m.deployment),
    Figure("scarce", lambda m: m.deployment.scarce),
    Figure("dilation", lambda m: m.dilation),
    Figure("setting", lambda m: m.setting, {"setting": "{}"}),
    Figure("targets", lambda m: m.deployment.targets, {"targets": "{}"}),
    Figure("drafters", lambda m: m.deployment.drafters, {"drafters": "{}"}),
    Figure("routers", lambda m: m.deployment.routers, {"routers": "{}"}),
    Figure("streams", lambda m: m.deployment.streams, {"streams": "{}"}),
    Figure("tokens_per_s", lambda m: _rate(m, m.window.tokens), {"tokens/s": "{:,.0f}"}),
    Figure("slices", lambda m: tuple(_rate(m, tokens, 1 / SLICES) for tokens in m.slices)),
    Figure("by_replica", lambda m: None, {"by replica": "{:.2f}x"}),
    Figure(
        "first",
        lambda m: percentiles([(wait_s / m.dilation, 1) for wait_s in m.window.firsts_s]),
        {"first, ms": "{}"},
    ),
    Figure(
        "inter_token",
        lambda m: percentiles([(gap_s / count / m.dilation, count) for gap_s, count in m.window.gaps]),
        {"inter-token, ms": "{}"},
    ),
    Figure(
        "pause",
        lambda m: percentiles([(gap_s / m.dilation, 1) for gap_s, _ in m.window.gaps]),
        {"pause, ms": "{}"},
    ),
    Figure("tau", lambda m: m.tau or None, {"tau": "{:.1f}"}),
    Figure("draft_length", lambda m: share(m.window.drafted, m.window.rounds), {"draft": "{:.1f}"}),
    Figure("completed", lambda m: m.window.completed),
    Figure("gpus", _gpus, {"GPUs": "{}"}),
    Figure(
        "gpu_s",
        lambda m: share(1000 * _gpus(m), _rate(m, m.window.tokens)),
        {"GPU s by 1,000 tokens": "{:.2f}"},
    ),
    Figure("outside", _outside),
    Figure("late", _late),
    Figure("distortion", lambda m: abs(_outside(m)) + _late(m), {"CPU's share": _shown_distortion}),
    Figure("busy", lambda m: m.machine.busy),
    Figure("lag_ms", lambda m: 1e3 * share(m.services.lag_s, m.services.probes)),
)
"""The figures of one deployment under one setting, in simulated seconds.

`by_replica` is set by `summarize`. `distortion` is the share of the streams' waits that the CPU caused,
`busy` the share of the machine's cores in use by all processes, `lag_ms` the mean delay with which the
services' event loops woke up, in real time.
"""


def summarize(measured: Sequence[Measured], smallest: int = 0) -> list[Row]:
    """Return the figures of every deployment and setting, compared with the deployment of `smallest` targets.

    Only the first deployment of that size counts: it has the usual load.
    """
    rows = make_rows(FIGURES, measured)
    base = {each.setting: each for each in reversed(rows) if each.targets == smallest}
    for each in rows:
        each.by_replica = scaling(each, base[each.setting]).value if each.setting in base else None
    return rows


def is_flagged(figures: Row) -> bool:
    """Return True if the CPU was too slow for this dilation: the figures say little about the deployment."""
    return bool(figures.distortion > MOST_DISTORTION)


def scaling(large: Row, small: Row) -> Interval:
    """Return the rate of the larger deployment divided by as many times the smaller one's as it is larger."""
    factor = large.deployment.targets / small.deployment.targets

    def ratio(pairs: Sequence[tuple[float, float]]) -> float:
        return share(sum(own for own, _ in pairs), factor * sum(base for _, base in pairs))

    return bootstrap(list(zip(large.slices, small.slices, strict=True)), ratio)


def scaling_goals(sizes: Sequence[Row]) -> list[Goal]:
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
        if is_flagged(large) or is_flagged(small):
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
