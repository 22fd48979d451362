"""The speculation loop of one response, without I/O: track what to verify next and what was decided."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from flyserve.core.response import Statistics
from flyserve.core.rule import decide
from flyserve.core.sequence import TokenSequence
from flyserve.core.types import (
    Decision,
    Evidence,
    FinishReason,
    FlyRule,
    ResponseLimits,
    RuleState,
    Token,
    Verdict,
)

StopFinder = Callable[[Sequence[int]], int | None]
"""Search for a stop string. Called with every decided token once, in order. If the given tokens complete a
stop string, return how many of them the response keeps, else None."""


class Speculation:
    """A growing response: the prompt, the decided tokens and the provisional tokens after them.

    The caller repeats until `finish_reason` is set: draft at most `max_drafts` tokens after `sequence`, let
    the target verify them, `apply` the evidence, emit the decided tokens.

    Attributes:
        sequence: The prompt, the decided tokens and the provisional tokens.
        prompt_length: Tokens of the prompt.
        statistics: Counts of rounds, drafts and verdicts.
        finish_reason: The reason why the response ended; None while it continues.
    """

    def __init__(
        self,
        prompt: TokenSequence | Sequence[int],
        rule: FlyRule,
        limits: ResponseLimits,
        find_stop: StopFinder = lambda ids: None,
        received: Sequence[int] = (),
    ) -> None:
        """Start a response, or resume one after its decided tokens `received`; they count for `limits`.

        The prompt is copied.
        """
        self.sequence = prompt.copy() if isinstance(prompt, TokenSequence) else TokenSequence(prompt)
        self.sequence.extend(received)
        self.prompt_length = len(prompt)
        self.statistics = Statistics()
        self.finish_reason: FinishReason | None = None
        self._rule = rule
        self._limits = limits
        self._find_stop = find_stop
        self._state = RuleState(len(received))

    @property
    def decided_length(self) -> int:
        """Tokens of the sequence that will never be rolled back, including the prompt."""
        return self.prompt_length + self._state.num_decided

    @property
    def tokens_left(self) -> int:
        """Tokens that the budget allows after `sequence`."""
        return self._limits.max_new_tokens - (len(self.sequence) - self.prompt_length)

    @property
    def max_drafts(self) -> int:
        """Longest draft, in tokens: it fits the budget together with one choice of the target.

        Unlimited if drafts are reproducible: the end of a shorter draft could change the decision.
        """
        return sys.maxsize if self._rule.reproducible_drafts else self.tokens_left - 1

    def apply(self, evidence: Evidence) -> Decision:
        """Decide the round, and update the sequence, the statistics and `finish_reason`.

        Return the decision, cut after the first ending token and at the token budget.
        """
        self._state, decision = decide(self._rule, self._state, evidence, self._limits)
        decision = self._cut(decision)
        self.sequence.truncate(self.decided_length - len(decision.decided))
        self.sequence.extend(token.id for token in decision.decided)
        self.sequence.extend(decision.provisional)
        self.statistics.count_round(len(evidence.positions), decision)
        return decision

    @property
    def is_settled(self) -> bool:
        """True if no provisional tokens are open: only then the target may extend the sequence."""
        return not self._state.provisional

    def extend(
        self, choices: Sequence[int], entropies: Sequence[float] = (), verdict: Verdict = Verdict.PLAIN
    ) -> Decision:
        """Decide tokens that one model decoded by itself after the sequence; update as `apply` does.

        It is one round, whatever their number, and the same as one round without a draft for each of them.
        Without `entropies` those of the tokens are None.
        """
        pairs = zip(choices, entropies or (None,) * len(choices), strict=True)
        tokens = [Token(choice, verdict, choice, entropy) for choice, entropy in pairs]
        self._state = RuleState(self._state.num_decided + len(tokens))
        decision = self._cut(Decision(tuple(tokens)))
        self.sequence.extend(token.id for token in decision.decided)
        self.statistics.count_round(0, decision)
        return decision

    def limit(self, max_new_tokens: int) -> None:
        """Change the budget, to more tokens than the sequence has."""
        if max_new_tokens != self._limits.max_new_tokens:
            self._limits = replace(self._limits, max_new_tokens=max_new_tokens)

    def end(self) -> Decision:
        """End the response with the tokens that are decided, as at the end of its budget."""
        self.sequence.truncate(self.decided_length)
        self._state = RuleState(self._state.num_decided)
        self.finish_reason = FinishReason.LENGTH
        return Decision(())

    def _cut(self, decision: Decision) -> Decision:
        """Cut the decision at the end of the response, if it contains it; set `finish_reason`."""
        before = self._state.num_decided - len(decision.decided)
        length, self.finish_reason = self._ending(decision.decided, self._limits.max_new_tokens - before)
        if self.finish_reason is None:
            return decision
        self._state = RuleState(before + length)
        rejection = decision.rejection if length == len(decision.decided) else None
        return Decision(decision.decided[:length], rejection=rejection)

    def _ending(self, decided: Sequence[Token], budget: int) -> tuple[int, FinishReason | None]:
        """Return how many of the tokens the response keeps, and its finish reason; None if it continues."""
        ids = [token.id for token in decided[:budget]]
        reason = FinishReason.LENGTH if len(ids) == budget else None
        for index, token in enumerate(ids):
            if token in self._limits.ending_ids:
                ids, reason = ids[: index + 1], FinishReason.STOP_TOKEN
                break
        stop = self._find_stop(ids)
        return (len(ids), reason) if stop is None else (stop, FinishReason.STOP_STRING)
