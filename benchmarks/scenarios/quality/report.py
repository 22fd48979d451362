"""The figures of every rule beside plain decoding of the same problems, and the report. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import Figure, Report, Row, Table, make_rows
from benchmarks.harness.runs import Compared, Run, Runs, accuracy, compare
from benchmarks.scenarios.quality.plan import BASELINE, TITLES, Plan
from demo.corpus import Family
from flyserve.bench.statistics import Interval, bootstrap, share, tau, total
from flyserve.core.messages import ModelInfo
from flyserve.core.response import DeploymentInfo

_REASONS = ("gate", "window", "tail", "guard", "exact")
_SHOWN = ("accuracy", "retention, %", "tau", "rescued")


def _solved(runs: Sequence[Run]) -> float:
    return accuracy(runs) or 0.0


def _changed(compared: Compared) -> tuple[int, int]:
    """Return the numbers of problems that only plain decoding solves, and that only the rule solves."""
    pairs = list(zip(compared[1], compared[2], strict=True))
    lost = sum(bool(plain.is_solved) and not run.is_solved for run, plain in pairs)
    return lost, sum(bool(run.is_solved) and not plain.is_solved for run, plain in pairs)


def _family(place: int, compared: Compared) -> str | None:
    """Return accuracy in one family of problems, which come in turn, and the part of plain decoding's."""
    own, plain = ([run for run in runs if run.prompt % len(Family) == place] for runs in compared[1:])
    if not own:
        return None
    shown = f"{_solved(own):.1%}"
    return (
        shown if compared[0] == BASELINE else f"{shown} ({share(_solved(own), _solved(plain)):.0%} of plain)"
    )


def _of_drafts(
    name: str, figure: Callable[[Compared], object], cells: Mapping[str, str | Callable[..., str]]
) -> Figure[Compared]:
    """Return a figure that plain decoding lacks."""
    return Figure(name, lambda c: None if c[0] == BASELINE else figure(c), cells)


def _first_rejections(compared: Compared) -> dict[str, float]:
    """Return the first rejected mismatches by reason."""
    return {reason: total(compared[1], attrgetter(f"rejected_by_{reason}")) for reason in _REASONS}


def _rescued(compared: Compared) -> float:
    return share(total(compared[1], attrgetter("rescued")), total(compared[1], attrgetter("emitted")))


def _percent(interval: Interval) -> str:
    value, low, high = (f"{100 * each:.2f}" for each in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"


_NAME: Figure[Compared] = Figure("setting", lambda c: c[0], {"setting": "{}"})
_REJECTED = "{0[gate]:,} / {0[window]:,} / {0[tail]:,} / {0[guard]:,}"
FIGURES: tuple[Figure[Compared], ...] = (
    _NAME,
    Figure("problems", lambda c: len(c[1])),
    Figure("accuracy", lambda c: _solved(c[1]), {"accuracy": "{:.1%}"}),
    _of_drafts("retention", lambda c: compare(c[1], c[2], _solved), {"retention, %": _percent}),
    _of_drafts("changed", _changed, {"lost / gained": "{0[0]} / {0[1]}"}),
    _of_drafts("tau", lambda c: bootstrap(c[1], tau), {"tau": "{0.value:.2f} ({0.low:.2f} to {0.high:.2f})"}),
    _of_drafts("rescued", _rescued, {"rescued": "{:.2%}"}),
    _of_drafts("rejected", _first_rejections, {"rejected: gate / window / tail / guard": _REJECTED}),
    _of_drafts("carried", lambda c: total(c[1], attrgetter("carried")), {"carried": "{:,}"}),
)
"""The figures of one rule; `carried` counts rounds that left a window open."""
FAMILIES: tuple[Figure[Compared], ...] = (
    _NAME,
    *(
        Figure(f"family_{each.value}", partial(_family, place), {each.value: "{}"})
        for place, each in enumerate(Family)
    ),
)
"""Accuracy by family of problems."""


def rule_rows(runs: Runs) -> list[Row]:
    """Return the figures of every rule."""
    compared = [(name, own, runs[BASELINE]) for name, own in runs.items()]
    return make_rows((*FIGURES, *FAMILIES[1:]), compared)


def make_report(
    machine: Machine, plan: Plan, deployment: DeploymentInfo, measured: Mapping[str, Runs]
) -> Report:
    """Return the report of the parts; it names the models by their folders, without paths of this machine."""
    target, drafter = _without_path(deployment.target), deployment.drafter
    named = replace(deployment, target=target, drafter=drafter and _without_path(drafter))
    groups = {part: rule_rows(runs) for part, runs in measured.items()}
    results = [
        (
            part,
            Table.of(TITLES[part], FIGURES, rows),
            Table.of(f"{TITLES[part]}: accuracy by family", FAMILIES, rows),
            _chart(TITLES[part], rows),
        )
        for part, rows in groups.items()
    ]
    report = Report("quality", machine, plan, deployment=named, groups=groups)
    return report.fill(results=results, titles=TITLES, shown=_SHOWN)


def _without_path(model: ModelInfo) -> ModelInfo:
    return replace(model, model_id="/".join(Path(model.model_id).parts[-2:]))


def _chart(title: str, rows: Sequence[Row]) -> str:
    unit = "accuracy relative to plain decoding"
    return bar_chart(title, unit, {row.setting: row.retention for row in rows if row.retention is not None})
