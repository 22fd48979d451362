"""All figures of a run: group by group, setting by setting."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.quality.examples import Example, right_ones, wrong_ones
from benchmarks.quality.figures import Figures, summarize, tau_ratio
from benchmarks.quality.records import Record
from benchmarks.quality.settings import HARD, MAIN, Group, Setting
from benchmarks.summary import Interval
from demo.tasks import Task
from fly.response import DeploymentInfo

Records = Mapping[str, Mapping[str, Record]]
"""Of every setting by its key, by problem."""

_LOOKED_AT = "flyserve, carry"


@dataclass(frozen=True)
class Row:
    """One setting's figures."""

    setting: Setting
    figures: Figures


@dataclass(frozen=True)
class TauRatio:
    """What one line of a sweep gains over another, all else equal."""

    line: str
    other: str
    value: float | str
    ratio: Interval


@dataclass(frozen=True)
class GroupResult:
    """A group's figures; examples only where rules are compared, ratios where a sweep has several lines."""

    group: Group
    rows: tuple[Row, ...]
    right: tuple[Example, ...] = ()
    wrong: tuple[Example, ...] = ()
    ratios: tuple[TauRatio, ...] = ()


@dataclass(frozen=True)
class Results:
    """What the report is made of."""

    deployment: DeploymentInfo
    groups: tuple[GroupResult, ...]

    def as_data(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "deployment": asdict(self.deployment),
            "groups": {
                result.group.name: [
                    {
                        "line": row.setting.line,
                        "value": row.setting.value,
                        "speculation": _said(row.setting.speculation),
                        "sampling": _said(row.setting.sampling),
                        "split": row.setting.split.value,
                        "figures": asdict(row.figures),
                    }
                    for row in result.rows
                ]
                for result in self.groups
            },
            "tau_ratios": {
                result.group.name: [asdict(ratio) for ratio in result.ratios]
                for result in self.groups
                if result.ratios
            },
        }


def collect(
    deployment: DeploymentInfo, groups: Sequence[tuple[Group, Sequence[Task]]], records: Records
) -> Results:
    """Figures of every group over its own problems.

    Args:
        deployment: What was measured.
        groups: Each with its problems.
        records: Every problem of a group under each of its settings.
    """
    found = tuple(_collect(group, tasks, records) for group, tasks in groups)
    return Results(_without_paths(deployment), found)


def _without_paths(deployment: DeploymentInfo) -> DeploymentInfo:
    """Where the models lay on the machine that measured is nobody's business."""
    target, drafter = deployment.target, deployment.drafter
    return replace(
        deployment,
        target=replace(target, model_id=_folder_name(target.model_id)),
        drafter=drafter and replace(drafter, model_id=_folder_name(drafter.model_id)),
    )


def _folder_name(model_id: str) -> str:
    return "/".join(Path(model_id).parts[-2:])


def _collect(group: Group, tasks: Sequence[Task], records: Records) -> GroupResult:
    own = {setting.key: _of(records[setting.key], tasks) for setting in group.settings}
    rows = tuple(
        Row(setting, summarize(own[setting.key], own[group.baseline(setting).key]))
        for setting in group.settings
    )
    looked_at = [setting for setting in group.settings if setting.line == _LOOKED_AT]
    if group.name not in (MAIN, HARD) or not looked_at:
        return GroupResult(group, rows, ratios=tuple(_ratios(group, own)))
    runs, baseline = own[looked_at[0].key], own[group.baseline(looked_at[0]).key]
    right, wrong = right_ones(tasks, runs, baseline), wrong_ones(tasks, runs, baseline)
    return GroupResult(group, rows, tuple(right), tuple(wrong))


def _ratios(group: Group, own: Records) -> Iterator[TauRatio]:
    """Tau of the group's leading line by that of each other line, at every value that both have."""
    for setting in group.settings:
        if setting.line != group.leading or setting.value is None:
            continue
        for other in group.settings:
            if other.value == setting.value and other.line != setting.line:
                ratio = tau_ratio(own[setting.key], own[other.key])
                yield TauRatio(setting.line, other.line, setting.value, ratio)


def _of(records: Mapping[str, Record], tasks: Sequence[Task]) -> dict[str, Record]:
    return {task.id: records[task.id] for task in tasks if task.id in records}


def _said(params: object) -> dict[str, object]:
    return {name: value for name, value in asdict(params).items() if value is not None}  # type: ignore[call-overload]
