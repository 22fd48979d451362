"""The report of every group of settings. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import Report, Row, Table
from benchmarks.scenarios.quality.figures import FAMILIES, FIGURES, summarize
from benchmarks.scenarios.quality.measure import Record
from benchmarks.scenarios.quality.settings import BASELINE, Group, Plan
from flyserve.bench.statistics import Interval
from flyserve.core.messages import ModelInfo
from flyserve.core.response import DeploymentInfo

Records = Mapping[str, Mapping[str, Record]]
"""Records by setting and by problem; all settings have the same problems."""
_SHOWN = ("accuracy", "retention, %", "tau", "rescued")


def make_report(
    machine: Machine, plan: Plan, deployment: DeploymentInfo, measured: Sequence[tuple[Group, Records]]
) -> Report:
    """Return the report; it names the models by their folders, without paths of this machine."""
    target, drafter = _without_path(deployment.target), deployment.drafter
    named = replace(deployment, target=target, drafter=drafter and _without_path(drafter))
    groups = [
        (group, [summarize(name, own, records[BASELINE]) for name, own in records.items()])
        for group, records in measured
    ]
    data = {group.name: rows for group, rows in groups}
    return Report("quality", machine, plan, deployment=named, groups=data).fill(
        results=[
            (
                group,
                Table.of(group.title, FIGURES, rows),
                Table.of(f"{group.title}: accuracy by family", FAMILIES, rows),
                _chart(group, rows),
            )
            for group, rows in groups
        ],
        shown=_SHOWN,
    )


def _without_path(model: ModelInfo) -> ModelInfo:
    return replace(model, model_id="/".join(Path(model.model_id).parts[-2:]))


def _chart(group: Group, rows: Sequence[Row]) -> str:
    bars = {row.setting: _percent(row.retention) for row in rows if row.retention is not None}
    return bar_chart(group.title, "accuracy relative to plain decoding, %", bars)


def _percent(interval: Interval) -> Interval:
    return Interval(100 * interval.value, 100 * interval.low, 100 * interval.high)
