"""The figures of every group of settings, and the report. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.plot import Points, line_chart
from benchmarks.harness.report import Figure, Report, Row, Table
from benchmarks.scenarios.quality.figures import FIGURES, summarize, tau_ratio
from benchmarks.scenarios.quality.measure import Record
from benchmarks.scenarios.quality.settings import Group, Plan
from fly.messages import ModelInfo
from fly.response import DeploymentInfo
from flyserve.bench.statistics import Interval
from flyserve.bench.tasks import Task

Records = Mapping[str, Mapping[str, Record]]
"""Records by the setting's key and by problem."""


@dataclass(frozen=True)
class TauRatio:
    """The tau of one line of a sweep divided by that of another, all else equal."""

    line: str
    other: str
    value: float | str
    ratio: Interval


@dataclass(frozen=True)
class GroupResult:
    """A group's figures; only sweeps with lines have ratios."""

    group: Group
    rows: tuple[Row, ...]
    ratios: tuple[TauRatio, ...] = ()


def collect(groups: Sequence[tuple[Group, Sequence[Task]]], records: Records) -> list[GroupResult]:
    """Return the figures of every group.

    Args:
        groups: Each with its problems.
        records: Every problem of a group under each of its settings.
    """
    return [_collect(group, tasks, records) for group, tasks in groups]


def _collect(group: Group, tasks: Sequence[Task], records: Records) -> GroupResult:
    own = {
        setting.key: {task.id: found[task.id] for task in tasks if task.id in found}
        for setting in group.settings
        for found in (records[setting.key],)
    }
    rows = tuple(
        Row(setting=setting, **vars(summarize(own[setting.key], own[group.baseline(setting).key])))
        for setting in group.settings
    )
    return GroupResult(group, rows, ratios=tuple(_ratios(group, own)))


def _ratios(group: Group, own: Records) -> Iterator[TauRatio]:
    """Yield tau of the group's leading line by that of each other line, at every value of both."""
    for setting in group.settings:
        if setting.line != group.leading or setting.value is None:
            continue
        for other in group.settings:
            if other.value == setting.value and other.line != setting.line:
                ratio = tau_ratio(own[setting.key], own[other.key])
                yield TauRatio(setting.line, other.line, setting.value, ratio)


def make_report(plan: Plan, deployment: DeploymentInfo, results: Sequence[GroupResult]) -> Report:
    """Return the report; it names the models by their folders, without paths of this machine."""
    target, drafter = (
        _without_path(deployment.target),
        deployment.drafter and _without_path(deployment.drafter),
    )
    return Report(
        "quality",
        plan=plan,
        deployment=replace(deployment, target=target, drafter=drafter),
        groups=_data(results),
        tau_ratios={result.group.name: result.ratios for result in results if result.ratios},
    ).fill(
        results=[(each, _table(each), _ratio_table(each), charts_of(each)) for each in results], shown=_SHOWN
    )


def _without_path(model: ModelInfo) -> ModelInfo:
    return replace(model, model_id="/".join(Path(model.model_id).parts[-2:]))


def _table(result: GroupResult) -> Table:
    group, (line, *others) = result.group, _COLUMNS
    heads = {group.title.lower(): "{}"} if group.is_sweep else {}
    value: Figure[Any] = Figure("value", lambda row: row.setting.value, heads)
    return Table.of(group.title, [line, value, *others], map(_shown, result.rows))


_COLUMNS: tuple[Figure[Any], ...] = (
    Figure("line", lambda row: row.setting.line, {"setting": "{}"}),
    *FIGURES,
)
_OF_DRAFTS = ("difference", "retention", "changed", "tau", "rescued_share", "rejected", "carried")
"""Figures that are not shown for settings without drafts."""
_SHOWN = ("accuracy", "retention, %", "tau", "rescued")


def _shown(row: Row) -> Row:
    hidden = {} if row.tau.value else dict.fromkeys(_OF_DRAFTS)
    return Row(**{**vars(row), **hidden, "line": row.setting.line, "value": row.setting.value})


def _ratio_table(result: GroupResult) -> Table:
    """Return a table with a row per value and a column per other line."""
    cells = {
        (
            ratio.value,
            ratio.other,
        ): f"{ratio.ratio.value:.3f} ({ratio.ratio.low:.3f} to {ratio.ratio.high:.3f})"
        for ratio in result.ratios
    }
    others = tuple(dict.fromkeys(ratio.other for ratio in result.ratios))
    values = dict.fromkeys(ratio.value for ratio in result.ratios)
    rows = tuple((str(value), *(cells[value, other] for other in others)) for value in values)
    return Table(f"tau of {result.group.leading} by others", (result.group.title.lower(), *others), rows)


_CHARTS: Mapping[str, tuple[str, Callable[[Row], float]]] = {
    "tau": ("tokens per round (tau)", lambda figures: figures.tau.value),
    "retention": ("accuracy by plain decoding's, %", lambda figures: figures.retention.value * 100),
}


def charts_of(result: GroupResult) -> dict[str, str]:
    """Return SVG by figure; empty unless a number varies."""
    charts = {}
    for name, (label, figure) in _CHARTS.items():
        lines: dict[str, Points] = {}
        for row in result.rows:
            value = row.setting.value
            if row.tau.value and isinstance(value, int | float):
                points = [*lines.get(row.setting.line, ()), (float(value), figure(row))]
                lines[row.setting.line] = sorted(points)
        if any(len(points) > 1 for points in lines.values()):
            title = f"{result.group.title}: {name}"
            charts[name] = line_chart(title, result.group.title.lower(), label, lines)
    return charts


def _data(results: Sequence[GroupResult]) -> dict[str, object]:
    return {
        result.group.name: [
            {
                "line": row.setting.line,
                "value": row.setting.value,
                "speculation": _set_fields(row.setting.speculation),
                "sampling": _set_fields(row.setting.sampling),
                "split": row.setting.split.value,
                "figures": {name: each for name, each in vars(row).items() if name != "setting"},
            }
            for row in result.rows
        ]
        for result in results
    }


def _set_fields(params: object) -> dict[str, object]:
    return {name: value for name, value in asdict(params).items() if value is not None}  # type: ignore[call-overload]
