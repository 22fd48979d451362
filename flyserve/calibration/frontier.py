"""Figures of replayed rules against `exact`, the frontier among them, and the choice of one. Pure."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flyserve.calibration.candidate import EXACT_CANDIDATE, Candidate, candidates, listed
from flyserve.calibration.replay import Projected, Replayed
from flyserve.core.errors import ConfigError

_PER = 100
"""Tokens to which the divergence of a table refers."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The response of a rule to one prompt.

    Attributes:
        family: Family of the prompt.
        replayed: The response.
        is_right: None if nothing can judge it.
    """

    family: str
    replayed: Replayed
    is_right: bool | None = None


Outcomes = Sequence[Outcome]
"""The responses of a rule to all prompts, in their order."""


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one rule.

    Attributes:
        candidate: The rule.
        tokens_per_round: Tokens by rounds; a round is one forward of the target.
        divergence: Nats that rescues spent, per 100 tokens.
        rescued: Part of the tokens that were rescued.
        same: Part of the responses that are those of `exact`.
        accuracy: Part of the responses that are right, by family, and under "" of all; empty without answers.
        kept: The same by that of `exact`; a family in which `exact` has none right is left out.
        lost: Right responses of `exact` that are wrong by this rule.
        gained: Wrong ones that are right by this rule.
    """

    candidate: Candidate
    tokens_per_round: float
    divergence: float
    rescued: float
    same: float
    accuracy: Mapping[str, float]
    kept: Mapping[str, float]
    lost: int = 0
    gained: int = 0


def figures(candidate: Candidate, outcomes: Outcomes, exact: Outcomes) -> Row:
    """Return the figures of a rule; both have the same prompts, at least one."""
    replays = [each.replayed for each in outcomes]
    pairs = list(zip(outcomes, exact, strict=True))
    accuracy, base = _accuracy(outcomes), _accuracy(exact)
    num_tokens = sum(len(each.tokens) for each in replays)
    return Row(
        candidate,
        num_tokens / sum(each.statistics.rounds for each in replays),
        _PER * sum(each.divergence for each in replays) / num_tokens,
        sum(each.statistics.rescued for each in replays) / num_tokens,
        sum(own.replayed.ids == other.replayed.ids for own, other in pairs) / len(pairs),
        accuracy,
        {family: accuracy[family] / value for family, value in base.items() if value},
        sum(bool(other.is_right) and not own.is_right for own, other in pairs),
        sum(bool(own.is_right) and not other.is_right for own, other in pairs),
    )


def _accuracy(outcomes: Outcomes) -> dict[str, float]:
    judged = [each for each in outcomes if each.is_right is not None]
    families = dict.fromkeys(("", *sorted({each.family for each in judged}))) if judged else {}
    return {
        family: _share([bool(each.is_right) for each in judged if family in ("", each.family)])
        for family in families
    }


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values)


def finalists(
    projections: Mapping[Candidate, Projected], most: int, beside: Container[Candidate]
) -> list[Candidate]:
    """Return the rules to replay whole: `most` along the projected frontier, each faster than the one before.

    Those in `beside` are replayed anyway, and are left out. The projection names the rules that lose least
    for their speed; it is no figure of a response.
    """

    def speed(candidate: Candidate) -> float:
        found = projections[candidate]
        return found.kept / max(1, found.rounds)

    front, most_kept = list[Candidate](), 0.0
    for each in sorted(projections, key=lambda each: (projections[each].divergence, -speed(each))):
        if speed(each) > most_kept:
            front.append(each)
            most_kept = speed(each)
    front = [each for each in front if each not in beside]
    if len(front) <= most:
        return front
    step = (len(front) - 1) / max(1, most - 1)
    return [front[round(index * step)] for index in range(most)]


def frontier(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that no other one beats in both tokens per round and loss, the slowest first.

    The loss is that of accuracy in the worst family, if responses were judged; equal ones, and all others,
    are compared by divergence.
    """
    best, front = float("-inf"), list[Row]()
    for row in sorted(rows, key=lambda row: (*_loss(row), -row.tokens_per_round)):
        if row.tokens_per_round > best:
            front.append(row)
            best = row.tokens_per_round
    return front


def _loss(row: Row) -> tuple[float, float]:
    return -min(1.0, worst(row)), row.divergence


def worst(row: Row) -> float:
    """Return the part of `exact`'s accuracy that a rule keeps in its worst family; 1 without answers."""
    return min(row.kept.values(), default=1.0)


def choose(rows: Sequence[Row], keep: float, name: str | None = None) -> Row:
    """Return the named rule, or the fastest that keeps this part of the accuracy in every family.

    Raises:
        ConfigError: As `named`, or the named rule has no row: it is not recorded. Without a name: no response
            of `exact` was right, or only `exact` keeps the accuracy.
    """
    if name is not None:
        chosen = named(candidates(), name)
        for row in rows:
            if row.candidate == chosen:
                return row
        raise ConfigError(f"--rule: {name!r} is not recorded: run once without --offline")
    if not any(row.kept for row in rows):
        raise ConfigError("--write: exact has no response right, so no loss is seen: name a --rule")
    fit = [row for row in rows if row.candidate.is_served and worst(row) >= keep]
    fastest = max(fit, key=lambda row: row.tokens_per_round)
    if fastest.candidate == EXACT_CANDIDATE:
        found = f"no faster rule keeps {keep:g} of the accuracy of exact in every family"
        raise ConfigError(f"--write: {found}: lower --keep, name a --rule, or serve mode exact")
    return fastest


def named(rules: Iterable[Candidate], name: str) -> Candidate:
    """Return the rule that `--rule` names; raise ConfigError if there is none, or it can be no preset."""
    found = {rule.name: rule for rule in rules}
    if name not in found:
        served = listed(rule.name for rule in found.values() if rule.is_served and rule != EXACT_CANDIDATE)
        raise ConfigError(f"--rule: is {name!r}, must be one of {served}")
    if not found[name].is_served:
        raise ConfigError(f"--rule: {name!r} can be replayed, but no deployment serves it")
    if found[name] == EXACT_CANDIDATE:
        raise ConfigError(f"--rule: {name!r} is a mode, and no preset: serve it by speculation.mode")
    return found[name]


def baseline(rows: Iterable[Row]) -> Row:
    """Return the row of `exact`."""
    return next(row for row in rows if row.candidate == EXACT_CANDIDATE)
