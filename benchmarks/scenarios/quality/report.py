"""The figures of every group of settings, examples of rescues, and the report. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.plot import Points, line_chart
from benchmarks.harness.report import Figure, Report, Row, Table
from benchmarks.scenarios.quality.figures import FIGURES, summarize, tau_ratio
from benchmarks.scenarios.quality.records import Record, Rescue
from benchmarks.scenarios.quality.settings import Group, Plan
from fly.messages import ModelInfo
from fly.response import DeploymentInfo
from flyserve.bench.statistics import Interval
from flyserve.bench.tasks import Task

Records = Mapping[str, Mapping[str, Record]]
"""Records by the setting's key and by problem."""
_WITH_EXAMPLES = "flyserve, carry"
_MOST_EXAMPLES = 2
_INTRODUCTION = """
Every setting answers the same problems as plain decoding, which takes the target's own token at every
position. Intervals hold 95% of 2,000 resamples of the problems, drawn in pairs: a setting and plain decoding
of the same problem. *Retention* is accuracy divided by that of plain decoding. *tau* is the number of tokens
emitted in rounds with a draft, divided by the number of these rounds. *Rescued* is the share of emitted
tokens that FLy accepted against the target's choice. *Rejected* counts why the first mismatch of a round was
rejected: the target was certain (gate), another mismatch followed (window), too little of the draft followed
(tail), a guard, or the mode (exact). *shrink* is vLLM's window, which shrinks with the draft, under the
guards of `flyserve`; *vllm* is without these guards.
"""


@dataclass(frozen=True)
class TauRatio:
    """The tau of one line of a sweep divided by that of another, all else equal."""

    line: str
    other: str
    value: float | str
    ratio: Interval


@dataclass(frozen=True)
class Example:
    """One problem whose response has rescued tokens."""

    task: Task
    record: Record


@dataclass(frozen=True)
class GroupResult:
    """A group's figures; only rules side by side have examples, only sweeps with lines have ratios."""

    group: Group
    rows: tuple[Row, ...]
    right: tuple[Example, ...] = ()
    wrong: tuple[Example, ...] = ()
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
    if group.is_sweep:
        return GroupResult(group, rows, ratios=tuple(_ratios(group, own)))
    setting = next(setting for setting in group.settings if setting.line == _WITH_EXAMPLES)
    return GroupResult(group, rows, *_examples(tasks, own[setting.key], own[group.baseline(setting).key]))


def _ratios(group: Group, own: Records) -> Iterator[TauRatio]:
    """Yield tau of the group's leading line by that of each other line, at every value of both."""
    for setting in group.settings:
        if setting.line != group.leading or setting.value is None:
            continue
        for other in group.settings:
            if other.value == setting.value and other.line != setting.line:
                ratio = tau_ratio(own[setting.key], own[other.key])
                yield TauRatio(setting.line, other.line, setting.value, ratio)


def _examples(
    tasks: Sequence[Task], runs: Mapping[str, Record], baseline: Mapping[str, Record]
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Return problems that plain decoding solves and whose response has rescues: solved ones, and lost ones.

    Solved ones with few rescues come first, and lost ones with a rescued digit.
    """
    found = [
        Example(task, runs[task.id])
        for task in tasks
        if task.id in runs and task.id in baseline and baseline[task.id].is_solved and runs[task.id].rescues
    ]
    right = sorted((e for e in found if e.record.is_solved), key=lambda e: len(e.record.rescues))
    wrong = sorted(
        (e for e in found if not e.record.is_solved),
        key=lambda e: not any(rescue.is_content for rescue in e.record.rescues),
    )
    return tuple(right[:_MOST_EXAMPLES]), tuple(wrong[:_MOST_EXAMPLES])


def marked(record: Record) -> str:
    """Return the response with every rescued token in brackets, followed by the target's choice."""
    text, at = "", 0
    for rescue in record.rescues:
        end = rescue.start + len(rescue.text)
        if rescue.start < at or end > len(record.response):
            continue
        text += record.response[at : rescue.start] + _bracketed(rescue)
        at = end
    return text + record.response[at:]


def _bracketed(rescue: Rescue) -> str:
    shown, choice = rescue.text.strip() or rescue.text, rescue.choice.strip() or rescue.choice
    lead = " " if rescue.text.startswith(" ") else ""
    return f"{lead}[{shown} | {choice}]"


def make_report(plan: Plan, deployment: DeploymentInfo, results: Sequence[GroupResult]) -> Report:
    """Return the report; it names the models by their folders, without paths of this machine."""
    target, drafter = (
        _without_path(deployment.target),
        deployment.drafter and _without_path(deployment.drafter),
    )
    data = {"deployment": replace(deployment, target=target, drafter=drafter), "groups": _data(results)}
    data["tau_ratios"] = {result.group.name: result.ratios for result in results if result.ratios}
    report = Report("quality", None, plan, **data)
    report.introduction("Quality and tokens per round", _INTRODUCTION)
    models = {"Target": target, "Drafter": drafter}
    report.verbatim(
        f"{name} `{model.model_id}`, {model.dtype}, weights `{model.weight_fingerprint[:12]}`."
        for name, model in models.items()
        if model is not None
    )
    report.text(f"FlyServe {deployment.target.version}. Decoding is greedy unless a temperature is given.")
    for result in results:
        _add_group(report, result)
    return report


def _without_path(model: ModelInfo) -> ModelInfo:
    return replace(model, model_id="/".join(Path(model.model_id).parts[-2:]))


def _add_group(report: Report, result: GroupResult) -> None:
    group = result.group
    report.heading(group.title)
    report.text(f"{result.rows[0].problems:,} problems.")
    line, *others = _COLUMNS
    heads = {group.title.lower(): "{}"} if group.is_sweep else {}
    value: Figure[Any] = Figure("value", lambda row: row.setting.value, heads)
    report.table(Table.of(group.title, [line, value, *others], map(_shown, result.rows)), _SHOWN)
    if result.ratios:
        report.text(f"tau of {group.leading}, all else equal, by that of:")
        report.table(_ratio_table(result))
    for figure, svg in charts_of(result).items():
        report.chart(f"{group.name.replace('_', '-')}-{figure}", svg, group.title)
    if not group.is_sweep:
        report.text("Losses by family:")
        report.verbatim(f"- **{row.setting.line}**: {_loss(row)}" for row in result.rows if row.tau.value)
        for title, examples in (("right", result.right), ("wrong", result.wrong)):
            for example in examples:
                _add_example(report, _EXAMPLE_TITLES[title], example)


_EXAMPLE_TITLES = {
    "right": "A rescue that was right",
    "wrong": "A rescue that was wrong: plain decoding solves this problem",
}


def _add_example(report: Report, title: str, example: Example) -> None:
    report.verbatim([f"**{title}.** Rescued tokens stand as [accepted | the target's own]."])
    lines = [line for line in marked(example.record).splitlines() if line.strip()]
    quoted = [example.task.prompt, "", *lines, "", f"Right answer: {example.task.answer}"]
    report.verbatim(f"> {line}".rstrip() for line in quoted)


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


def _loss(figures: Row) -> str:
    """Return the losses of one setting as sentences."""
    places = ", ".join(
        f"{family.family} {family.baseline_accuracy:.1%} to {family.accuracy:.1%}"
        f" ({family.lost} lost, {family.gained} gained of {family.problems:,})"
        for family in figures.families
    )
    certainty = "" if figures.difference.low <= 0 <= figures.difference.high else "; beyond chance"
    content = (
        f" In {figures.lost_after_content} of the {figures.lost} lost problems a digit was rescued, or"
        f" rescued against; this holds for {figures.rescued_content:,} of {figures.rescued:,} rescued tokens."
        if figures.rescued and figures.lost
        else ""
    )
    return f"{figures.difference.value * 100:+.2f} points{certainty}. {places}.{content}"


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
