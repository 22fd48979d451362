"""Figures of one setting against plain decoding of the same problems, with bootstrap intervals. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.scenarios.quality.records import Record
from fly.response import Statistics
from flyserve.bench.statistics import Interval, share

_RESAMPLES = 2000
_TAIL = 2.5
_REASONS = ("gate", "window", "tail", "guard", "exact")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FamilyFigures:
    """One family's share of the losses."""

    family: str
    problems: int
    baseline_accuracy: float
    accuracy: float
    lost: int
    gained: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One setting's figures.

    Attributes:
        problems: Problems measured under both this setting and plain decoding.
        accuracy: Share of problems solved.
        difference: Accuracy minus that of plain decoding.
        retention: Accuracy divided by that of plain decoding.
        tau: Tokens emitted in rounds with a draft, divided by the number of these rounds.
        lost: Problems that plain decoding solved and this setting did not.
        gained: Problems that this setting solved and plain decoding did not.
        lost_after_content: Lost problems whose response has a digit that was rescued, or rescued against.
        rescued_share: Rescued tokens divided by emitted tokens.
        rescued_content: Rescued tokens with a digit in them or in the target's choice.
        rejected: First rejected mismatches by reason.
        carried: Rounds that left a window open.
    """

    problems: int
    accuracy: float
    difference: Interval
    retention: Interval
    tau: Interval
    lost: int
    gained: int
    lost_after_content: int
    emitted: int
    rescued: int
    rescued_share: float
    rescued_content: int
    rejected: Mapping[str, int]
    carried: int
    families: tuple[FamilyFigures, ...]


def summarize(runs: Mapping[str, Record], baseline: Mapping[str, Record]) -> Figures:
    """Return the figures over the problems that both have, at least one."""
    pairs = [(runs[problem], baseline[problem]) for problem in runs if problem in baseline]
    own, base = _solved([run for run, _ in pairs]), _solved([plain for _, plain in pairs])
    records = [run for run, _ in pairs]
    lost = [run for run, plain in pairs if plain.is_solved and not run.is_solved]
    emitted, rescued = _total(records, "emitted"), _total(records, "rescued")
    return Figures(
        problems=len(pairs),
        accuracy=float(own.mean()),
        difference=_interval(len(pairs), lambda drawn: float(own[drawn].mean() - base[drawn].mean())),
        retention=_interval(len(pairs), lambda drawn: share(own[drawn].sum(), base[drawn].sum())),
        tau=_tau(records),
        lost=len(lost),
        gained=sum(run.is_solved and not plain.is_solved for run, plain in pairs),
        lost_after_content=sum(any(rescue.is_content for rescue in run.rescues) for run in lost),
        emitted=emitted,
        rescued=rescued,
        rescued_share=share(rescued, emitted),
        rescued_content=sum(rescue.is_content for run in records for rescue in run.rescues),
        rejected={reason: _total(records, f"rejected_by_{reason}") for reason in _REASONS},
        carried=_total(records, "carried"),
        families=tuple(_by_family(pairs)),
    )


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


def family_of(problem: str) -> str:
    """Return the family that a problem's id names."""
    return problem.split("-")[1]


def _by_family(pairs: Sequence[tuple[Record, Record]]) -> list[FamilyFigures]:
    families = dict.fromkeys(family_of(run.problem) for run, _ in pairs)
    return [
        _family(name, [(run, plain) for run, plain in pairs if family_of(run.problem) == name])
        for name in families
    ]


def _family(name: str, pairs: Sequence[tuple[Record, Record]]) -> FamilyFigures:
    return FamilyFigures(
        family=name,
        problems=len(pairs),
        baseline_accuracy=share(sum(plain.is_solved for _, plain in pairs), len(pairs)),
        accuracy=share(sum(run.is_solved for run, _ in pairs), len(pairs)),
        lost=sum(plain.is_solved and not run.is_solved for run, plain in pairs),
        gained=sum(run.is_solved and not plain.is_solved for run, plain in pairs),
    )


def _tau(records: Sequence[Record]) -> Interval:
    tokens, rounds = _drafted(records)
    return _interval(len(records), lambda drawn: share(tokens[drawn].sum(), rounds[drawn].sum()))


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


def _solved(records: Sequence[Record]) -> Floats:
    return np.array([record.is_solved for record in records], dtype=np.float64)


def _column(records: Sequence[Record], figure: Callable[[Statistics], float]) -> Floats:
    return np.array([figure(record.statistics) for record in records], dtype=np.float64)


def _total(records: Sequence[Record], name: str) -> int:
    return sum(getattr(record.statistics, name) for record in records)
