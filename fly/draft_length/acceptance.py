"""How many drafts of a given length are kept, learned from the rounds that were played."""

from collections.abc import Callable

from fly.costs import Average

_POOL_MEMORY_ROUNDS = 32
"""Rounds of every sequence that take part in the pool's curve."""
_OWN_MEMORY_ROUNDS = 20
_PRIOR_REFUSAL = 0.2
_USUAL_TRIALS = 128
"""Drafts over which the rejections of a first token are averaged, for times without drafts."""
_NEIGHBOUR_WEIGHT = 4.0
"""Trials that the position before counts for: what has not been seen for long is taken to be like it."""
_POOL_WEIGHT = 24.0
"""Rejections that the pool counts for in a sequence's own rate."""

TailLength = Callable[[int], int]
"""Of a draft of so many tokens: how many of its last ones the rule cannot rescue for want of what follows."""


class SurvivalPool:
    """How often a draft position is rejected, over the recent rounds of all sequences of one kind.

    A position's rejection counts only where everything before it in the draft was kept (the product-limit
    estimator), so drafts of different lengths add up to one curve. Positions that the rule could not have
    rescued, at the end of a draft, share a rate of their own: a shorter draft moves them. What is assumed is
    that a position's chance does not otherwise depend on the length of its draft.

    Attributes:
        rejections: Probability that position 1, 2, ... is the first to be rejected, given that all before it
            are kept.
        tail_rejection: The same for any position of the tail.
    """

    def __init__(self, max_length: int, tail_length: TailLength = lambda length: 0) -> None:
        self.max_length = max_length
        self.tails = tuple(min(length, tail_length(length)) for length in range(max_length + 1))
        self.rejections = [_PRIOR_REFUSAL] * max_length
        self.tail_rejection = _PRIOR_REFUSAL
        self._trials = [0.0] * max_length
        self._rejected = [0.0] * max_length
        self._tail_trials = 0.0
        self._tail_rejected = 0.0
        self._usual = Average(_PRIOR_REFUSAL, _USUAL_TRIALS)

    def observe(self, length: int, kept: int, num_sequences: int = 1) -> None:
        """Adds a round of one of so many sequences: of `length` drafts the first `kept` were kept."""
        if length:
            self._usual.add(float(kept == 0))
        keep = 1 - 1 / (_POOL_MEMORY_ROUNDS * num_sequences)
        self._trials = [trials * keep for trials in self._trials]
        self._rejected = [rejected * keep for rejected in self._rejected]
        self._tail_trials *= keep
        self._tail_rejected *= keep
        body = length - self.tails[length]
        for index in range(min(body, kept + 1)):
            self._trials[index] += 1
        self._tail_trials += max(0, min(length, kept + 1) - body)
        if kept < body:
            self._rejected[kept] += 1
        elif kept < length:
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
    """One sequence's drafts: the pool's curve, with all rejections so many times as likely.

    The factor is what the sequence's own recent rounds had of rejections over what the pool expects of them
    (proportional hazards with a gamma prior around 1), so a new sequence starts as the others are.
    """

    def __init__(self, pool: SurvivalPool) -> None:
        self._pool = pool
        self._rejected = 0.0
        self._expected = 0.0

    @property
    def factor(self) -> float:
        """How many times as likely a rejection is as in the pool."""
        return (self._rejected + _POOL_WEIGHT) / (self._expected + _POOL_WEIGHT)

    def observe(self, length: int, kept: int, num_sequences: int = 1) -> None:
        """Adds a round: of `length` drafts the first `kept` were kept; without drafts, time passes.

        Args:
            length: At most the pool's longest.
            kept: At most `length`.
            num_sequences: That add to the pool at present.
        """
        keep, pool = 1 - 1 / _OWN_MEMORY_ROUNDS, self._pool
        length = max(0, min(length, pool.max_length))
        kept = max(0, min(length, kept))
        at_risk = min(length, kept + 1)
        in_body = min(at_risk, length - pool.tails[length])
        expected = sum(pool.rejections[:in_body]) + (at_risk - in_body) * pool.tail_rejection
        self._expected = self._expected * keep + expected
        self._rejected = self._rejected * keep + (kept < length)
        pool.observe(length, kept, num_sequences)

    def expected_tokens(self) -> list[float]:
        """Tokens that a round is expected to give, the target's own one included, by length of its draft."""
        pool, factor = self._pool, self.factor
        tail_kept = max(0.0, 1 - factor * pool.tail_rejection)
        survivals, tokens = [1.0], [1.0]
        for rejection in pool.rejections:
            survivals.append(survivals[-1] * max(0.0, 1 - factor * rejection))
            tokens.append(tokens[-1] + survivals[-1])
        return [
            tokens[length - tail] + survivals[length - tail] * _geometric(tail_kept, tail)
            for length, tail in enumerate(pool.tails)
        ]


def _geometric(ratio: float, terms: int) -> float:
    """`ratio + ratio ** 2 + ...`, so many terms."""
    return sum(ratio**power for power in range(1, terms + 1)) if terms else 0.0


class KeptDrafts:
    """Rounds whose drafts have been judged but, while a window is carried over, not yet decided."""

    def __init__(self) -> None:
        self._rounds: list[tuple[int, int]] = []

    def add(self, start: int, length: int) -> None:
        """A draft of `length` tokens from position `start` of the sequence on."""
        self._rounds.append((start, length))

    def settle(self, decided_length: int, is_open: bool) -> list[tuple[int, int]]:
        """Length and kept drafts of every round that is decided by now.

        Args:
            decided_length: Tokens of the sequence that will never be rolled back.
            is_open: Provisional tokens follow them; otherwise the last decided one is the target's own.
        """
        if not is_open:
            rounds, self._rounds = self._rounds, []
            kept_end = decided_length - 1
            return [(length, max(0, min(length, kept_end - start))) for start, length in rounds]
        settled = [(start, length) for start, length in self._rounds if start + length <= decided_length]
        self._rounds = [entry for entry in self._rounds if entry not in settled]
        return [(length, length) for _, length in settled]
