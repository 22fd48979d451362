"""The report as Markdown, with its figures as JSON and its charts as SVG."""

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.quality.charts import charts_of
from benchmarks.quality.examples import Example, marked
from benchmarks.quality.figures import Figures
from benchmarks.quality.results import GroupResult, Results, Row
from benchmarks.summary import Interval

_INTRODUCTION = """\
# Quality and tokens per round

Every setting answers the same problems as plain decoding, which takes the target's own token at every
position. Intervals hold 95% of 2,000 resamples of the problems, drawn in pairs: a setting and plain decoding
of the same problem. *Retention* is accuracy by plain decoding's. *tau* is the tokens emitted in rounds with a
draft, by such rounds. *Rescued* is the share of emitted tokens that FLy kept against the target's choice.
*Rejected* says why the first mismatch of a round was not kept: the target was sure (gate), another mismatch
followed (window), too little of the draft followed (tail), a guard, or the mode (exact). *shrink* is vLLM's
window, which shrinks with the draft, under the guards of `flyserve`; *vllm* is without them.
"""


def write_report(results: Results, folder: Path) -> Path:
    """Writes everything into a folder; the Markdown's path."""
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps(results.as_data(), indent=1, default=str) + "\n"
    (folder / "quality.json").write_text(data, encoding="utf-8")
    for result in results.groups:
        for name, chart in charts_of(result).items():
            (folder / name).write_text(chart, encoding="utf-8")
    path = folder / "quality.md"
    path.write_text("\n".join(_lines(results)), encoding="utf-8")
    return path


def _lines(results: Results) -> Iterator[str]:
    target, drafter = results.deployment.target, results.deployment.drafter
    yield _INTRODUCTION
    yield f"Target `{target.model_id}`, {target.dtype}, weights `{target.weight_fingerprint[:12]}`."
    if drafter is not None:
        yield f"Drafter `{drafter.model_id}`, {drafter.dtype}, weights `{drafter.weight_fingerprint[:12]}`."
    yield f"FlyServe {target.version}. Greedy decoding where no temperature is given."
    for result in results.groups:
        yield f"\n## {result.group.title}\n"
        yield from _table(result)
        yield from _ratios(result)
        yield from (f"\n![{result.group.title}]({name})" for name in charts_of(result))
        if not result.group.is_sweep:
            yield from _losses(result)
            yield from _examples(result)
    yield ""


def _table(result: GroupResult) -> Iterator[str]:
    yield f"{result.rows[0].figures.problems:,} problems.\n"
    heads = ["setting", *([result.group.title.lower()] if result.group.is_sweep else [])]
    heads += ["accuracy", "less plain, points", "retention, %", "lost / gained", "tau", "rescued"]
    heads += ["rejected: gate / window / tail / guard", "carried"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in result.rows:
        yield f"| {' | '.join(_cells(row, result.group.is_sweep))} |"


def _cells(row: Row, is_sweep: bool) -> Iterator[str]:
    figures = row.figures
    yield row.setting.line
    if is_sweep:
        yield "-" if row.setting.value is None else str(row.setting.value)
    yield f"{figures.accuracy:.1%}"
    if not figures.tau.value:
        yield from "-" * 7
        return
    yield _interval(figures.difference, 100, "+.2f")
    yield _interval(figures.retention, 100, ".2f")
    yield f"{figures.lost} / {figures.gained}"
    yield _interval(figures.tau, 1, ".2f")
    yield f"{figures.rescued_share:.2%}"
    yield " / ".join(f"{figures.rejected[reason]:,}" for reason in ("gate", "window", "tail", "guard"))
    yield f"{figures.carried:,}"


def _interval(interval: Interval, scale: float, form: str) -> str:
    value, low, high = (
        format(number * scale, form) for number in (interval.value, interval.low, interval.high)
    )
    return f"{value} ({low} to {high})"


def _ratios(result: GroupResult) -> Iterator[str]:
    """A row per value, a column per other line."""
    others = list(dict.fromkeys(ratio.other for ratio in result.ratios))
    if not others:
        return
    yield f"\ntau of {result.group.leading}, all else equal, by that of:\n"
    yield f"| {result.group.title.lower()} | {' | '.join(others)} |"
    yield f"|{'---|' * (len(others) + 1)}"
    for value in dict.fromkeys(ratio.value for ratio in result.ratios):
        found = {ratio.other: ratio.ratio for ratio in result.ratios if ratio.value == value}
        yield f"| {value} | {' | '.join(_interval(found[other], 1, '.3f') for other in others)} |"


def _losses(result: GroupResult) -> Iterator[str]:
    yield "\nWhat is lost, and where:\n"
    for row in result.rows:
        if row.figures.tau.value:
            yield f"- **{row.setting.line}**: {_loss(row.figures)}"


def _loss(figures: Figures) -> str:
    """One setting's losses in words."""
    places = ", ".join(
        f"{family.family} {family.baseline_accuracy:.1%} to {family.accuracy:.1%}"
        f" ({family.lost} lost, {family.gained} gained of {family.problems:,})"
        for family in figures.families
    )
    certainty = "" if figures.difference.low <= 0 <= figures.difference.high else "; beyond chance"
    content = (
        f" In {figures.lost_after_content} of the {figures.lost} lost problems a digit was rescued, or"
        f" rescued against; of {figures.rescued:,} rescued tokens this holds for {figures.rescued_content:,}."
        if figures.rescued and figures.lost
        else ""
    )
    return f"{figures.difference.value * 100:+.2f} points{certainty}. {places}.{content}"


def _examples(result: GroupResult) -> Iterator[str]:
    kinds = (
        ("A rescue that was right", result.right),
        ("A rescue that was wrong: plain decoding solves this problem", result.wrong),
    )
    for title, examples in kinds:
        for example in examples:
            yield f"\n**{title}.** Rescued tokens stand as [kept | the target's own].\n"
            yield from _example(example)


def _example(example: Example) -> Iterator[str]:
    yield f"> {example.task.prompt}\n>"
    yield from (f"> {line}" for line in marked(example.record).splitlines() if line.strip())
    yield f">\n> Right answer: {example.task.answer}"
