"""What a comparison found: figures per setting, from one measurement per problem and setting. Pure."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeVar

from fly.response import Statistics

_RESAMPLES = 1000
_CONFIDENCE = 0.95

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One problem under one setting.

    Attributes:
        problem: Its id.
        seconds: From the call to the whole response, as the client sees it.
        is_solved: The response ends with the right answer.
        statistics: As the server reports them.
    """

    problem: str
    seconds: float
    is_solved: bool
    statistics: Statistics


class Timed(Protocol):
    """A response, how long it took, and how it was made."""

    @property
    def seconds(self) -> float:
        """From the call to the whole response, as the client sees it."""

    @property
    def statistics(self) -> Statistics:
        """As the server reports them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95% confidence interval (bootstrap over problems)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the greatest."""

    value: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Summary:
    """One setting's line of the table.

    Attributes:
        setting: Its name.
        problems: How many were measured.
        tokens_per_s: All tokens by all seconds.
        median_tokens_per_s: Over problems.
        speed_up: `tokens_per_s` by the baseline's in the same run.
        tau: Tokens emitted in rounds with a draft, by such rounds.
        rescued_share: Rescued tokens by emitted tokens.
        supplied_share: Draft tokens that the sub-drafter supplied, by draft tokens.
        forwards_per_token: Drafter forwards by emitted tokens.
        accuracy: Problems solved by problems.
        lost: Problems that the baseline solved and this setting did not.
        gained: The reverse.
    """

    setting: str
    problems: int
    tokens_per_s: float
    median_tokens_per_s: float
    speed_up: Interval
    tau: float
    rescued_share: float
    supplied_share: float
    forwards_per_token: float
    accuracy: float
    lost: int
    gained: int


def summarize(setting: str, runs: Sequence[Measurement], baseline: Sequence[Measurement]) -> Summary:
    """Summarizes one setting against the baseline, problem by problem.

    Args:
        setting: Its name.
        runs: One measurement per problem, at least one.
        baseline: Of the same problems in the same order.
    """
    emitted = total(runs, lambda s: s.emitted)
    pairs = list(zip(runs, baseline, strict=True))
    return Summary(
        setting=setting,
        problems=len(runs),
        tokens_per_s=speed(runs),
        median_tokens_per_s=median(speed([run]) for run in runs),
        speed_up=bootstrap(pairs, _speed_up),
        tau=tau(runs),
        rescued_share=share(total(runs, lambda s: s.rescued), emitted),
        supplied_share=share(total(runs, lambda s: s.sub_drafter_tokens), total(runs, lambda s: s.drafted)),
        forwards_per_token=share(total(runs, lambda s: s.drafter_forwards), emitted),
        accuracy=share(sum(run.is_solved for run in runs), len(runs)),
        lost=sum(base.is_solved and not run.is_solved for run, base in pairs),
        gained=sum(run.is_solved and not base.is_solved for run, base in pairs),
    )


def summarize_all(runs: Mapping[str, Sequence[Measurement]], baseline: str) -> list[Summary]:
    """One summary per setting, in their order."""
    return [summarize(setting, measured, runs[baseline]) for setting, measured in runs.items()]


def speed(runs: Sequence[Timed]) -> float:
    """Tokens per second: all tokens by all seconds."""
    return share(total(runs, lambda s: s.emitted), sum(run.seconds for run in runs))


def tau(runs: Sequence[Timed]) -> float:
    """Tokens emitted in rounds with a draft, by such rounds."""
    return share(total(runs, lambda s: s.tau * s.draft_rounds), total(runs, lambda s: s.draft_rounds))


def total(runs: Sequence[Timed], figure: Callable[[Statistics], float]) -> float:
    """The sum of a figure over all responses."""
    return sum(figure(run.statistics) for run in runs)


def share(part: float, whole: float) -> float:
    """`part / whole`; 0 of nothing."""
    return part / whole if whole else 0.0


def bootstrap(units: Sequence[T], figure: Callable[[Sequence[T]], float]) -> Interval:
    """A figure of independent units, and the interval in which it lies over resamples of them (seeded)."""
    rng = random.Random(0)
    drawn = sorted(figure(rng.choices(units, k=len(units))) for _ in range(_RESAMPLES))
    tail = round(_RESAMPLES * (1 - _CONFIDENCE) / 2)
    return Interval(figure(units), drawn[tail], drawn[-tail - 1])


def _speed_up(pairs: Sequence[tuple[Measurement, Measurement]]) -> float:
    return share(speed([run for run, _ in pairs]), speed([base for _, base in pairs]))
