"""The evidence of a round, as the router returns it and as a recording keeps it. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flyserve.core.messages import Verification
from flyserve.core.types import EntropyEstimator, Evidence, Position

ENTROPY_TOKENS = 3
"""Most likely tokens per position from which the estimator `top_k` follows."""


@dataclass(frozen=True, slots=True)
class RoundEvidence:
    """Everything that the rule could know about the tokens of one round.

    Attributes:
        drafts: Draft tokens; none in a round without a draft.
        choices: The target's own choice at the position of each draft token, and after the last one.
        entropies: Entropy at each of these positions, in the unit of the request's estimator.
        gaps: Log-probability of the choice less that of the draft token, in nats, per draft token.
        top_ids: The most likely tokens at each position, as many as the request's `logprobs`, in one list.
        top_logprobs: Their log-probabilities.
    """

    drafts: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()
    entropies: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()

    @classmethod
    def of(cls, drafts: Sequence[int], answer: Verification) -> "RoundEvidence":
        """Return the evidence of a round; the target may have scored fewer drafts than it was sent."""
        scored = tuple(drafts[: len(answer.choices) - 1])
        top = [pair for each in answer.logprobs for pair in each.top]
        return cls(
            scored,
            tuple(answer.choices),
            tuple(answer.entropies),
            tuple(answer.gaps[: len(scored)]),
            tuple(token for token, _ in top),
            tuple(logprob for _, logprob in top),
        )

    @property
    def is_whole(self) -> bool:
        """True if every position has all its values, the three most likely tokens included."""
        places = len(self.choices)
        return (
            places == len(self.entropies) == len(self.drafts) + 1
            and len(self.gaps) == len(self.drafts)
            and len(self.top_ids) == len(self.top_logprobs) == places * self.num_top
            and self.num_top >= ENTROPY_TOKENS
        )

    @property
    def num_top(self) -> int:
        """Number of most likely tokens at each position."""
        return len(self.top_ids) // len(self.choices) if self.choices else 0

    def rank(self, index: int) -> int:
        """Return the place of a draft token among the most likely ones, from 1; one more if it is none."""
        start = index * self.num_top
        top = self.top_ids[start : start + self.num_top]
        return top.index(self.drafts[index]) + 1 if self.drafts[index] in top else self.num_top + 1

    def for_rule(self, estimator: EntropyEstimator, most_drafts: int) -> Evidence:
        """Return what the rule decides by, from a recording with the estimator `normalized`.

        Drafts beyond `most_drafts` are left out, as if the draft had been shorter.
        """
        entropies = self.entropies if estimator is EntropyEstimator.NORMALIZED else (*self._top_k(),)
        judged = zip(self.drafts[:most_drafts], self.choices, entropies, self.gaps, strict=False)
        positions = tuple(Position(d, c, entropy, logprob_gap=gap) for d, c, entropy, gap in judged)
        return Evidence(positions, self.choices[len(positions)], entropies[len(positions)])

    def _top_k(self) -> Iterator[float]:
        """Yield the entropy by the estimator `top_k` at each position."""
        for start in range(0, len(self.top_logprobs), self.num_top):
            top = self.top_logprobs[start : start + ENTROPY_TOKENS]
            yield -sum(math.exp(logprob) * logprob for logprob in top)
