"""The report as tables for the terminal, Markdown, JSON and charts."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.acceleration.figures import Figures
from benchmarks.acceleration.results import Results
from benchmarks.acceleration.runs import runs_as_data
from benchmarks.acceleration.settings import AHEAD, BASELINE, DRAFT_LENGTH, PASSES
from benchmarks.acceleration.simulation import AGREEMENT, DRAFTER_S, TARGET_S
from benchmarks.acceleration.workloads import WORKLOADS
from benchmarks.bars import bars_table, ratio_cells
from benchmarks.svg import bar_chart
from benchmarks.text_table import TextTable

_STEM = "acceleration"
_HEADS = (
    "",
    "tokens/s",
    "by",
    "95% interval",
    "median",
    "tau",
    "drafts of",
    "forwards",
    "sub_drafter_tokens",
    "asked (late, rejected, weak)",
    "ahead",
    "draft, ms",
    "verify, ms",
)
_NARROW = ("tokens/s", "by", "95% interval", "tau", "forwards", "ahead")
_INTRODUCTION = f"""\
# What speeds drafting up

Every prompt under every setting by turns, in an order that rotates, after a warm-up, one request at a time
through router, target, drafter and sub-drafter, each a process of its own with one thread. Every way of
drafting has a drafter and a router of its own; those that are not measured at the moment are idle. Greedy
decoding in mode fly, drafts of {DRAFT_LENGTH}; *goodput* chooses their length up to that.

A setting is named by its sub-drafter; *ahead* goes on drafting while the target verifies. *by*: all tokens
by all seconds, by the same of the setting *{BASELINE.name}* (or a part's first one) on the same prompts, with
its 95% interval over resamples of the prompts; *median* is that of the prompts' own ratios. *forwards*:
drafter forwards per token emitted. *sub_drafter_tokens*: draft tokens that the sub-drafter proposed.
*asked*: questions to the sub-drafter per response, with those answered late, rejected, and too weak.
*ahead*: tokens drafted ahead that were of use. *draft* and *verify*: milliseconds per round.
"""


def make_tables(results: Results) -> Iterator[TextTable]:
    """For the terminal: a table per part that was measured, then what was promised."""
    for part in results.runs:
        yield part_table(results, part).only(_NARROW)
    yield bars_table(results.bars())


def write_report(results: Results, folder: Path) -> Path:
    """Writes everything into a folder; the Markdown's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_STEM}.json").write_text(json.dumps(_data(results), indent=1) + "\n", encoding="utf-8")
    for part in results.runs:
        (folder / _chart_name(part)).write_text(_chart(results, part), encoding="utf-8")
    path = folder / f"{_STEM}.md"
    path.write_text("\n".join(_lines(results)), encoding="utf-8")
    return path


def part_table(results: Results, part: str) -> TextTable:
    """A row per setting."""
    return TextTable(_title(results, part), _HEADS, tuple(_row(each) for each in results.figures(part)))


def _row(figures: Figures) -> tuple[str, ...]:
    return (
        figures.name,
        f"{figures.tokens_per_s:.0f}",
        *ratio_cells(figures.ratio),
        f"{figures.median_ratio:.2f}x",
        f"{figures.tau:.2f}",
        f"{figures.draft_length:.1f}",
        f"{figures.forwards_per_token:.2f}",
        f"{figures.supplied_share:.0%}",
        f"{figures.asked:.1f} ({figures.late:.1f}, {figures.rejected:.1f}, {figures.weak:.1f})",
        "-" if figures.ahead_share is None else f"{figures.ahead_share:.0%}",
        f"{figures.draft_ms:.1f}",
        f"{figures.verify_ms:.1f}",
    )


def _lines(results: Results) -> Iterator[str]:
    yield _INTRODUCTION
    yield f"Machine: {results.machine.describe()}\n"
    yield from bars_table(results.bars()).markdown()
    for part in results.runs:
        yield f"\n## {_title(results, part)}\n"
        yield f"{_note(results, part)}\n"
        yield from part_table(results, part).markdown()
        yield f"\n![{_title(results, part)}]({_chart_name(part)})"
    yield ""


def _note(results: Results, part: str) -> str:
    if part == PASSES:
        return _passes_note(results)
    return _ahead_note(results) if part == AHEAD else f"This is {WORKLOADS[part](results.plan).note}."


def _passes_note(results: Results) -> str:
    plan, passes = results.plan, results.passes()
    each, alone = passes.by_pair, passes.alone
    return (
        f"{plan.pass_prompts} problems of the demo pair with the sub-drafter `suffix`: a first pass fills the"
        " memory of a fresh cache salt, a second one asks the same again, beside the first pass of the next"
        f" salt. {plan.passes} pairs of passes: {each.value:.2f}x ({each.least:.2f} to {each.most:.2f})."
        f" Without a sub-drafter, on {plan.control_prompts} of the problems, {alone.value:.2f}x"
        f" ({alone.low:.2f} to {alone.high:.2f}): that much of it is caches of the prompts. Rows without a"
        " sub-drafter are by the first pass without."
    )


def _ahead_note(results: Results) -> str:
    plan, ahead = results.plan, results.ahead()
    return (
        f"Simulated engines in mode exact, {TARGET_S * 1e3:g} ms a forward of the target and"
        f" {DRAFTER_S * 1e3:g} ms one of the drafter, which takes the target's choice with probability"
        f" {AGREEMENT:g}. {plan.ahead_pairs} responses of {plan.ahead_tokens} tokens each. Fastest without:"
        f" {ahead.best}; with: {ahead.best_ahead}."
    )


def _title(results: Results, part: str) -> str:
    titles = {PASSES: "A second pass", AHEAD: "Drafting ahead, simulated"}
    return titles.get(part) or WORKLOADS[part](results.plan).title


def _chart_name(part: str) -> str:
    return f"{_STEM}-{part}.svg"


def _chart(results: Results, part: str) -> str:
    bars = {f.name: (f.ratio.value, f.ratio.low, f.ratio.high) for f in results.figures(part)}
    return bar_chart(_title(results, part), f"tokens/s by {next(iter(results.runs[part]))}", bars)


def _data(results: Results) -> dict[str, object]:
    return {
        "machine": asdict(results.machine),
        "plan": asdict(results.plan),
        "bars": [{**asdict(bar), "verdict": bar.verdict} for bar in results.bars()],
        "figures": {part: [asdict(each) for each in results.figures(part)] for part in results.runs},
        "runs": {part: runs_as_data(runs) for part, runs in results.runs.items()},
    }
