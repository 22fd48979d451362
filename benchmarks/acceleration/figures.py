"""What the responses say: rates, ratios side by side, what drafting cost and who helped. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.acceleration.runs import Run, Runs
from benchmarks.summary import Interval, Spread, bootstrap, share, speed, spread, tau, total

Pairs = Sequence[tuple[Run, Run]]
"""Runs of one prompt in one repetition, under one setting and under another."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One setting's line.

    Attributes:
        tokens_per_s: All tokens by all seconds.
        each: Tokens per second over responses.
        ratio: `tokens_per_s` by that of the baseline on the same prompts.
        median_ratio: Of the responses' own ratios.
        tau: Tokens per round with a draft.
        draft_length: Draft tokens per round.
        forwards_per_token: Drafter forwards by tokens emitted.
        supplied_share: Draft tokens that the sub-drafter supplied.
        asked: Questions to the sub-drafter per response; late, rejected and weak answers among them.
        ahead_share: Tokens drafted ahead that were of use; None where none were.
        draft_ms: Drafting, per round with a draft.
        verify_ms: Verifying, per round.
    """

    name: str
    tokens_per_s: float
    each: Spread
    ratio: Interval
    median_ratio: float
    tau: float
    draft_length: float
    forwards_per_token: float
    supplied_share: float
    asked: float
    late: float
    rejected: float
    weak: float
    ahead_share: float | None
    draft_ms: float
    verify_ms: float


def summarize(runs: Runs, baseline: str) -> list[Figures]:
    """A line per setting, in their order; the baseline is among them."""
    return [_figures(name, measured, runs[baseline]) for name, measured in runs.items()]


def compare(
    runs: Sequence[Run], baseline: Sequence[Run], figure: Callable[[Sequence[Run]], float] = speed
) -> Interval:
    """A figure of one setting by the baseline's, and its interval over resamples of the prompts."""
    by_prompt: dict[int, list[tuple[Run, Run]]] = {}
    for pair in zip(runs, baseline, strict=True):
        by_prompt.setdefault(pair[0].prompt, []).append(pair)

    def ratio(prompts: Sequence[Pairs]) -> float:
        mine = [run for pairs in prompts for run, _ in pairs]
        others = [run for pairs in prompts for _, run in pairs]
        return share(figure(mine), figure(others))

    return bootstrap(list(by_prompt.values()), ratio)


def ratios_by_repetition(runs: Sequence[Run], baseline: Sequence[Run]) -> Spread:
    """Of all prompts' speeds together, one ratio per repetition."""

    def of(repetition: int, measured: Sequence[Run]) -> float:
        return speed([run for run in measured if run.repetition == repetition])

    return spread([share(of(r, runs), of(r, baseline)) for r in sorted({run.repetition for run in runs})])


def forwards_per_token(runs: Sequence[Run]) -> float:
    """Drafter forwards by tokens emitted."""
    return share(total(runs, lambda s: s.drafter_forwards), total(runs, lambda s: s.emitted))


def fastest(runs: Runs) -> str:
    """The name with the most tokens per second."""
    return max(runs, key=lambda name: speed(runs[name]))


def _figures(name: str, runs: Sequence[Run], baseline: Sequence[Run]) -> Figures:
    ahead = total(runs, lambda s: s.drafted_ahead)
    ahead_in_all = ahead + total(runs, lambda s: s.dropped_ahead)
    drafted = total(runs, lambda s: s.drafted)
    return Figures(
        name=name,
        tokens_per_s=speed(runs),
        each=spread([run.tokens_per_s for run in runs]),
        ratio=compare(runs, baseline),
        median_ratio=median(
            share(run.tokens_per_s, other.tokens_per_s) for run, other in zip(runs, baseline, strict=True)
        ),
        tau=tau(runs),
        draft_length=share(drafted, total(runs, lambda s: s.rounds)),
        forwards_per_token=forwards_per_token(runs),
        supplied_share=share(total(runs, lambda s: s.sub_drafter_tokens), drafted),
        asked=total(runs, lambda s: s.proposals_requested) / len(runs),
        late=total(runs, lambda s: s.proposals_late) / len(runs),
        rejected=total(runs, lambda s: s.proposals_invalid) / len(runs),
        weak=total(runs, lambda s: s.proposals_low_confidence) / len(runs),
        ahead_share=ahead / ahead_in_all if ahead_in_all else None,
        draft_ms=1e3 * share(total(runs, lambda s: s.draft_s), total(runs, lambda s: s.draft_rounds)),
        verify_ms=1e3 * share(total(runs, lambda s: s.verify_s), total(runs, lambda s: s.rounds)),
    )
