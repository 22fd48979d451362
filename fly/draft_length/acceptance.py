"""Acceptance statistics: the expected number of accepted tokens by draft length, learned from past rounds."""

from collections.abc import Callable

from fly.ewma import RecentMean

_POOL_MEMORY_ROUNDS = 32
"""Rounds of every sequence that count in the pool's curve."""
_OWN_MEMORY_ROUNDS = 20
_PRIOR_REJECTION = 0.2
_USUAL_TRIALS = 128
"""Drafts over which the rejections of the first token are averaged, for periods without drafts."""
_NEIGHBOUR_WEIGHT = 4.0
"""Trials that the previous position counts for: a position without recent data is assumed to be like it."""
_POOL_WEIGHT = 24.0
"""Rejections that the pool counts for in a sequence's own rate."""

TailLength = Callable[[int], int]
"""Return how many of the last tokens of a draft of the given length the rule cannot rescue."""


class SurvivalPool:
    """Rejection rates by draft position, over the recent rounds of all sequences of one kind.

    A rejection of a position counts only if every token before it in the draft was accepted (the
    product-limit estimator), so drafts of different lengths add up to one curve. Positions in the tail, where
    the rule cannot rescue, share one rate: in a shorter draft the tail lies elsewhere. The estimate assumes
    that a position's rate does not otherwise depend on the length of its draft.

    Attributes:
        max_length: Longest draft, in tokens.
        tails: Length of the tail, by length of the draft.
        rejections: Probability that position 1, 2, ... is rejected, given that all tokens before it are
            accepted.
        tail_rejection: The same for any position of the tail.
    """

    def __init__(self, max_length: int, tail_length: TailLength = lambda length: 0) -> None:
        self.max_length = max_length
        self.tails = tuple(min(length, tail_length(length)) for length in range(max_length + 1))
        self.rejections = [_PRIOR_REJECTION] * max_length
        self.tail_rejection = _PRIOR_REJECTION
        self._trials = [0.0] * max_length
        self._rejected = [0.0] * max_length
        self._tail_trials = 0.0
        self._tail_rejected = 0.0
        self._usual = RecentMean(_PRIOR_REJECTION, _USUAL_TRIALS)

    def observe(self, length: int, accepted: int, num_sequences: int = 1) -> None:
        """Add a round of one of `num_sequences` sequences: `accepted` of `length` drafts were accepted."""
        if length:
            self._usual.add(float(accepted == 0))
        keep = 1 - 1 / (_POOL_MEMORY_ROUNDS * num_sequences)
        self._trials = [trials * keep for trials in self._trials]
        self._rejected = [rejected * keep for rejected in self._rejected]
        self._tail_trials *= keep
        self._tail_rejected *= keep
        body = length - self.tails[length]
        for index in range(min(body, accepted + 1)):
            self._trials[index] += 1
        self._tail_trials += max(0, min(length, accepted + 1) - body)
        if accepted < body:
            self._rejected[accepted] += 1
        elif accepted < length:
            self._tail_rejected += 1
        self._estimate()

    def _estimate(self) -> None:
        weight = _NEIGHBOUR_WEIGHT
        rejected = self._tail_rejected + weight * self._usual.value
        rejection = self.tail_rejection = rejected / (self._tail_trials + weight)
        for index, (trials, rejected) in enumerate(zip(self._trials, self._rejected, strict=True)):
            rejection = (rejected + weight * rejection) / (trials + weight)
            self.rejections[index] = rejection


class Acceptance:
    """Acceptance of one sequence's drafts: the pool's curve with all rejection rates scaled by one factor.

    The factor is the number of rejections in the sequence's own recent rounds over the number that the pool
    expects there (proportional hazards with a gamma prior around 1), so a new sequence starts with the pool's
    rates.
    """

    def __init__(self, pool: SurvivalPool) -> None:
        self._pool = pool
        self._rejected = 0.0
        self._expected = 0.0

    @property
    def factor(self) -> float:
        """The sequence's rejection rate relative to the pool's."""
        return (self._rejected + _POOL_WEIGHT) / (self._expected + _POOL_WEIGHT)

    def observe(self, length: int, accepted: int, num_sequences: int = 1) -> None:
        """Add a round; a round without drafts ages the statistics.

        Args:
            length: Draft tokens that were verified, at most the pool's `max_length`.
            accepted: Draft tokens that were accepted, at most `length`.
            num_sequences: Sequences that add to the pool at present.
        """
        keep, pool = 1 - 1 / _OWN_MEMORY_ROUNDS, self._pool
        length = max(0, min(length, pool.max_length))
        accepted = max(0, min(length, accepted))
        at_risk = min(length, accepted + 1)
        in_body = min(at_risk, length - pool.tails[length])
        expected = sum(pool.rejections[:in_body]) + (at_risk - in_body) * pool.tail_rejection
        self._expected = self._expected * keep + expected
        self._rejected = self._rejected * keep + (accepted < length)
        pool.observe(length, accepted, num_sequences)

    def expected_tokens(self) -> list[float]:
        """Return the expected tokens of a round, the target's own included, by length of its draft."""
        pool, factor = self._pool, self.factor
        tail_acceptance = max(0.0, 1 - factor * pool.tail_rejection)
        survivals, tokens = [1.0], [1.0]
        for rejection in pool.rejections:
            survivals.append(survivals[-1] * max(0.0, 1 - factor * rejection))
            tokens.append(tokens[-1] + survivals[-1])
        return [
            tokens[length - tail] + survivals[length - tail] * _geometric_sum(tail_acceptance, tail)
            for length, tail in enumerate(pool.tails)
        ]


def _geometric_sum(ratio: float, terms: int) -> float:
    """Return `ratio + ratio ** 2 + ... + ratio ** terms`."""
    return sum(ratio**power for power in range(1, terms + 1)) if terms else 0.0


class PendingAcceptance:
    """Rounds that are verified but, while a window is carried, not yet decided."""

    def __init__(self) -> None:
        self._rounds: list[tuple[int, int]] = []

    def add(self, start: int, length: int) -> None:
        """Add a draft of `length` tokens from position `start` of the sequence on."""
        self._rounds.append((start, length))

    def settle(self, decided_length: int, is_open: bool) -> list[tuple[int, int]]:
        """Remove the rounds that are decided by now; return draft length and accepted drafts of each.

        Args:
            decided_length: Tokens of the sequence that will never be rolled back.
            is_open: Provisional tokens follow them; otherwise the last decided token is the target's own.
        """
        if not is_open:
            rounds, self._rounds = self._rounds, []
            accepted_end = decided_length - 1
            return [(length, max(0, min(length, accepted_end - start))) for start, length in rounds]
        settled = [(start, length) for start, length in self._rounds if start + length <= decided_length]
        self._rounds = [entry for entry in self._rounds if entry not in settled]
        return [(length, length) for _, length in settled]
