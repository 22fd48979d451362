"""Figures of one setting against plain decoding of the same problems, with bootstrap intervals. Pure."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.report import Figure, Row, make_rows
from benchmarks.scenarios.quality.measure import Record
from fly.response import Statistics
from flyserve.bench.statistics import Interval, share

_RESAMPLES = 2000
_TAIL = 2.5
_REASONS = ("gate", "window", "tail", "guard", "exact")

Floats = NDArray[np.float64]


Pairs = Sequence[tuple[Record, Record]]
"""The records of one setting and of plain decoding, problem by problem."""


def _runs(pairs: Pairs) -> list[Record]:
    return [run for run, _ in pairs]


def _solved(pairs: Pairs) -> tuple[Floats, Floats]:
    """Return 1 per solved problem and 0 per other one, of the setting and of plain decoding."""
    own, base = zip(*((run.is_solved, plain.is_solved) for run, plain in pairs), strict=True)
    return np.array(own, dtype=np.float64), np.array(base, dtype=np.float64)


def _lost(pairs: Pairs) -> list[Record]:
    return [run for run, plain in pairs if plain.is_solved and not run.is_solved]


def _changed(pairs: Pairs) -> str:
    return f"{len(_lost(pairs))} / {len(_lost([(plain, run) for run, plain in pairs]))}"


def _difference(pairs: Pairs) -> Interval:
    own, base = _solved(pairs)
    return _interval(len(pairs), lambda drawn: float(own[drawn].mean() - base[drawn].mean()))


def _retention(pairs: Pairs) -> Interval:
    own, base = _solved(pairs)
    return _interval(len(pairs), lambda drawn: share(own[drawn].sum(), base[drawn].sum()))


def _tau(pairs: Pairs) -> Interval:
    tokens, rounds = _drafted(_runs(pairs))
    return _interval(len(pairs), lambda drawn: share(tokens[drawn].sum(), rounds[drawn].sum()))


def _rejected(pairs: Pairs) -> dict[str, int]:
    """Return the first rejected mismatches by reason."""
    return {reason: _total(pairs, f"rejected_by_{reason}") for reason in _REASONS}


def _total(pairs: Pairs, name: str) -> int:
    return sum(getattr(run.statistics, name) for run in _runs(pairs))


def _points(interval: Interval, form: str = ".2f") -> str:
    value, low, high = (f"{100 * each:{form}}" for each in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"


_SOLVED: tuple[Figure[Pairs], ...] = (
    Figure("problems", len),
    Figure("baseline_accuracy", lambda pairs: float(_solved(pairs)[1].mean())),
    Figure("accuracy", lambda pairs: float(_solved(pairs)[0].mean()), {"accuracy": "{:.1%}"}),
    Figure("lost", lambda pairs: len(_lost(pairs))),
    Figure("gained", lambda pairs: len(_lost([(plain, run) for run, plain in pairs]))),
)
FIGURES: tuple[Figure[Pairs], ...] = (
    *_SOLVED,
    Figure("difference", _difference, {"less plain, points": lambda each: _points(each, "+.2f")}),
    Figure("retention", _retention, {"retention, %": _points}),
    Figure("changed", _changed, {"lost / gained": "{}"}),
    Figure("tau", _tau, {"tau": "{0.value:.2f} ({0.low:.2f} to {0.high:.2f})"}),
    Figure("emitted", lambda pairs: _total(pairs, "emitted")),
    Figure("rescued", lambda pairs: _total(pairs, "rescued")),
    Figure(
        "rescued_share",
        lambda pairs: share(_total(pairs, "rescued"), _total(pairs, "emitted")),
        {"rescued": "{:.2%}"},
    ),
    Figure(
        "rejected",
        _rejected,
        {
            "rejected: gate / window / tail / guard": (
                "{0[gate]:,} / {0[window]:,} / {0[tail]:,} / {0[guard]:,}"
            )
        },
    ),
    Figure("carried", lambda pairs: _total(pairs, "carried"), {"carried": "{:,}"}),
)
"""The figures of one setting, over the problems measured under both this setting and plain decoding.

`carried` counts rounds that left a window open.
"""


def summarize(runs: Mapping[str, Record], baseline: Mapping[str, Record]) -> Row:
    """Return the figures over the problems that both have, at least one."""
    (row,) = make_rows(FIGURES, [[(runs[name], baseline[name]) for name in runs if name in baseline]])
    return row


def tau_ratio(runs: Mapping[str, Record], others: Mapping[str, Record]) -> Interval:
    """Return tau of one setting by another's over the problems of both, resampled in pairs."""
    problems = [problem for problem in runs if problem in others]
    (tokens, rounds), (other_tokens, other_rounds) = (
        _drafted([records[problem] for problem in problems]) for records in (runs, others)
    )

    def ratio(drawn: NDArray[np.int64]) -> float:
        tau = share(tokens[drawn].sum(), rounds[drawn].sum())
        return share(tau, share(other_tokens[drawn].sum(), other_rounds[drawn].sum()))

    return _interval(len(problems), ratio)


def _drafted(records: Sequence[Record]) -> tuple[Floats, Floats]:
    """Return per problem the tokens emitted in rounds with a draft, and these rounds."""
    rounds = _column(records, lambda statistics: statistics.draft_rounds)
    return _column(records, lambda statistics: statistics.tau) * rounds, rounds


def _interval(count: int, figure: Callable[[NDArray[np.int64]], float]) -> Interval:
    """Return a figure of all problems, and its interval over resamples, which all figures share."""
    rng = np.random.default_rng(0)
    drawn = [figure(rng.integers(0, count, count)) for _ in range(_RESAMPLES)]
    low, high = np.percentile(drawn, [_TAIL, 100 - _TAIL])
    return Interval(float(figure(np.arange(count))), float(low), float(high))


def _column(records: Sequence[Record], figure: Callable[[Statistics], float]) -> Floats:
    return np.array([figure(record.statistics) for record in records], dtype=np.float64)
