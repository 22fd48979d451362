"""Replay of a rule on recorded rounds: the same decisions as a live response, without models. Pure.

A round is a function of the tokens before it, if decoding is greedy and drafts are reproducible. So a
recording maps the hash of the response's tokens before a round to its evidence, and the replay of any rule is
exact as far as its rounds were recorded. Where one is missing, the replay returns the tokens before it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flyserve.calibration.candidate import EXACT_CANDIDATE, Candidate, gap_of
from flyserve.core.evidence import RoundEvidence
from flyserve.core.response import Statistics
from flyserve.core.rule import decide
from flyserve.core.speculation import Speculation
from flyserve.core.types import Evidence, FinishReason, ResponseLimits, RuleState, Token, Verdict

Prefix = tuple[int, ...]
"""The response's tokens before a round: decided ones, and those of an open window."""
Rounds = Mapping[int, RoundEvidence]
"""The recorded rounds of one prompt, by the hash of the prefix of each."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A response as a rule decides it.

    Attributes:
        tokens: Its tokens.
        statistics: Counts of its rounds.
        finish_reason: The reason why it ended.
        divergence: Nats that its rescues spent: the sum of their gaps.
    """

    tokens: tuple[Token, ...]
    statistics: Statistics
    finish_reason: FinishReason
    divergence: float

    @property
    def ids(self) -> Prefix:
        return tuple(token.id for token in self.tokens)


class Replay:
    """The replay of one response by a rule; it goes on where a round was missing."""

    def __init__(self, candidate: Candidate, limits: ResponseLimits, draft_length: int) -> None:
        self._candidate, self._limits, self._draft_length = candidate, limits, draft_length
        self._speculation = Speculation((), candidate.rule, limits)
        self._tokens, self._gaps, self._spent = list[Token](), dict[int, float](), 0.0

    def advance(self, rounds: Rounds) -> Replayed | Prefix:
        """Return the whole response, or the prefix of the first round that is not recorded."""
        speculation = self._speculation
        while (reason := speculation.finish_reason) is None:
            if (recorded := rounds.get(place_of(speculation))) is None:
                return tuple(speculation.sequence.ids)
            self._decide(recorded)
        return Replayed(tuple(self._tokens), speculation.statistics, reason, self._spent)

    def _decide(self, recorded: RoundEvidence) -> None:
        speculation, candidate, gaps = self._speculation, self._candidate, self._gaps
        start = len(speculation.sequence)
        # The nats of an open window are spent, too: its mismatch may still be rescued.
        pending = sum(gaps.get(place, 0.0) for place in range(speculation.decided_length, start))
        evidence = candidate.evidence(recorded, self._draft_length, self._spent + pending)
        evidence = until_ending(evidence, self._limits) if candidate.rule.guard_stops else evidence
        # The target's token after the draft spends nothing, whatever an earlier draft had in its place.
        gaps |= dict(enumerate([*map(gap_of, evidence.positions), 0.0], start=start))
        decided = speculation.apply(evidence).decided
        self._spent += sum(
            gaps[place]
            for place, token in enumerate(decided, start=len(self._tokens))
            if token.verdict is Verdict.RESCUED
        )
        self._tokens += decided


def until_ending(evidence: Evidence, limits: ResponseLimits) -> Evidence:
    """Return the evidence up to the first draft token that ends the response.

    A rule that guards such tokens has its drafts end there; a recording goes on, for the rules that do not.
    """
    positions = evidence.positions
    for index, position in enumerate(positions[:-1]):
        if position.token in limits.ending_ids:
            after = positions[index + 1]
            return Evidence(positions[: index + 1], after.choice, after.entropy)
    return evidence


@dataclass(frozen=True, slots=True)
class Projected:
    """Decisions of a rule in the rounds of `exact`, one after the other: an estimate for the whole response.

    Attributes:
        rounds: Number of these rounds with a draft.
        kept: Tokens that the sequence would keep after them, those of open windows included.
        divergence: Nats of the mismatches among these.
    """

    rounds: int = 0
    kept: int = 0
    divergence: float = 0.0

    def __add__(self, other: "Projected") -> "Projected":
        divergence = self.divergence + other.divergence
        return Projected(self.rounds + other.rounds, self.kept + other.kept, divergence)


def project(rounds: Rounds, candidate: Candidate, limits: ResponseLimits, draft_length: int) -> Projected:
    """Return the projection of a rule on the rounds of `exact`, which are all recorded."""
    total = Projected()
    for num_decided, recorded in _exact_rounds(rounds, limits, draft_length):
        evidence = candidate.evidence(recorded, draft_length, total.divergence)
        _, decision = decide(candidate.rule, RuleState(num_decided), evidence, limits)
        kept = len(decision.decided) + len(decision.provisional)
        total += Projected(1, kept, sum(map(gap_of, evidence.positions[: kept - 1])))
    return total


def _exact_rounds(
    rounds: Rounds, limits: ResponseLimits, draft_length: int
) -> Iterator[tuple[int, RoundEvidence]]:
    """Yield the rounds with a draft that a replay of `exact` goes through, with the tokens before each."""
    speculation = Speculation((), EXACT_CANDIDATE.rule, limits)
    while speculation.finish_reason is None:
        recorded = rounds[place_of(speculation)]
        if recorded.drafts:
            yield len(speculation.sequence), recorded
        apply_exact(speculation, recorded, limits, draft_length)


def apply_exact(
    speculation: Speculation, recorded: RoundEvidence, limits: ResponseLimits, draft_length: int
) -> None:
    """Decide a recorded round as `exact` does."""
    evidence = EXACT_CANDIDATE.evidence(recorded, draft_length, 0.0)
    speculation.apply(until_ending(evidence, limits))


def place_of(speculation: Speculation) -> int:
    """Return the hash under which the next round of a response is recorded."""
    return speculation.sequence.prefix_hash(len(speculation.sequence))
