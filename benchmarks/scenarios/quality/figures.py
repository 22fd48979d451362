"""Figures of one setting against plain decoding of the same problems, with bootstrap intervals. Pure."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.harness.report import Figure, Row, make_rows
from benchmarks.scenarios.quality.measure import Record
from benchmarks.scenarios.quality.settings import BASELINE
from demo.corpus import Family
from flyserve.bench.statistics import Interval, bootstrap, mean_tau, share

_REASONS = ("gate", "window", "tail", "guard", "exact")
Pairs = Sequence[tuple[Record, Record]]
"""The records of one setting and of plain decoding, problem by problem."""
Compared = tuple[str, Pairs]
"""The name of a setting, and its pairs."""


def _accuracy(pairs: Pairs, place: int = 0) -> float:
    """Return the share of solved problems of the setting (0), or of plain decoding (1)."""
    return sum(pair[place].is_solved for pair in pairs) / len(pairs)


def _relative(pairs: Pairs) -> float:
    return share(_accuracy(pairs), _accuracy(pairs, 1))


def _changed(pairs: Pairs) -> tuple[int, int]:
    """Return the numbers of problems that only plain decoding solves, and that only the setting solves."""
    lost = sum(plain.is_solved and not run.is_solved for run, plain in pairs)
    return lost, sum(run.is_solved and not plain.is_solved for run, plain in pairs)


def _total(pairs: Pairs, name: str) -> int:
    return sum(getattr(run.statistics, name) for run, _ in pairs)


def _family(family: str, compared: Compared) -> str | None:
    """Return accuracy in one family of problems, and the part of plain decoding's that it is."""
    pairs = [pair for pair in compared[1] if pair[0].problem.split("-")[1] == family]
    if not pairs:
        return None
    shown = f"{_accuracy(pairs):.1%}"
    return shown if compared[0] == BASELINE else f"{shown} ({_relative(pairs):.0%} of plain)"


def _of_drafts(
    name: str, figure: Callable[[Pairs], object], cells: Mapping[str, str | Callable[..., str]]
) -> Figure[Compared]:
    """Return a figure that plain decoding lacks."""
    return Figure(name, lambda c: None if c[0] == BASELINE else figure(c[1]), cells)


def _tau(pairs: Pairs) -> float:
    return mean_tau([run.statistics for run, _ in pairs])


def _percent(interval: Interval) -> str:
    value, low, high = (f"{100 * each:.2f}" for each in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"


def _first_rejections(pairs: Pairs) -> dict[str, int]:
    """Return the first rejected mismatches by reason."""
    return {reason: _total(pairs, f"rejected_by_{reason}") for reason in _REASONS}


_NAME: Figure[Compared] = Figure("setting", lambda c: c[0], {"setting": "{}"})
FIGURES: tuple[Figure[Compared], ...] = (
    _NAME,
    Figure("problems", lambda c: len(c[1])),
    Figure("accuracy", lambda c: _accuracy(c[1]), {"accuracy": "{:.1%}"}),
    _of_drafts("retention", partial(bootstrap, figure=_relative), {"retention, %": _percent}),
    _of_drafts("changed", _changed, {"lost / gained": "{0[0]} / {0[1]}"}),
    _of_drafts(
        "tau", partial(bootstrap, figure=_tau), {"tau": "{0.value:.2f} ({0.low:.2f} to {0.high:.2f})"}
    ),
    _of_drafts("rescued", lambda p: share(_total(p, "rescued"), _total(p, "emitted")), {"rescued": "{:.2%}"}),
    _of_drafts(
        "rejected",
        _first_rejections,
        {
            "rejected: gate / window / tail / guard": (
                "{0[gate]:,} / {0[window]:,} / {0[tail]:,} / {0[guard]:,}"
            )
        },
    ),
    _of_drafts("carried", lambda pairs: _total(pairs, "carried"), {"carried": "{:,}"}),
)
"""The figures of one setting, over the problems measured under both this setting and plain decoding.

`carried` counts rounds that left a window open.
"""
FAMILIES: tuple[Figure[Compared], ...] = (
    _NAME,
    *(Figure(f"family_{each.value}", partial(_family, each.value), {each.value: "{}"}) for each in Family),
)
"""Accuracy by family of problems."""


def summarize(setting: str, runs: Mapping[str, Record], baseline: Mapping[str, Record]) -> Row:
    """Return the figures over the problems that both have, at least one."""
    pairs = [(runs[name], baseline[name]) for name in runs if name in baseline]
    (row,) = make_rows((*FIGURES, *FAMILIES[1:]), [(setting, pairs)])
    return row
