"""The speculation loop of one response, without input or output: what to verify next, what was decided."""

from collections.abc import Callable, Sequence

from fly.response import Statistics
from fly.rule import decide
from fly.sequence import TokenSequence
from fly.types import Decision, Evidence, FinishReason, FlyRule, ResponseLimits, RuleState, Token

StopFinder = Callable[[Sequence[int]], int | None]
"""Told every decided token once and in order; answers how many of the given ones the response keeps when
they complete a stop string, else None."""


class Speculation:
    """One response as it grows: prompt, decided tokens, and the provisional tail.

    Its caller repeats, until `finish_reason` is set: draft at most `max_drafts` tokens after `sequence`, have
    the target verify them, `apply` the evidence, emit what was decided.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        rule: FlyRule,
        limits: ResponseLimits,
        find_stop: StopFinder = lambda ids: None,
        received: Sequence[int] = (),
    ) -> None:
        """Begins a response, or goes on with one behind the decided tokens that it has `received`."""
        self.sequence = TokenSequence((*prompt, *received))
        self.prompt_length = len(prompt)
        self.statistics = Statistics()
        self.finish_reason: FinishReason | None = None
        self._rule = rule
        self._limits = limits
        self._find_stop = find_stop
        self._state = RuleState(len(received))

    @property
    def decided_length(self) -> int:
        """Tokens of the sequence that will never be rolled back, the prompt included."""
        return self.prompt_length + self._state.num_decided

    @property
    def max_drafts(self) -> int:
        """Longest draft whose every token, and one choice more, can still be emitted."""
        return self._limits.max_new_tokens - (len(self.sequence) - self.prompt_length) - 1

    def apply(self, evidence: Evidence) -> Decision:
        """Decides the round and grows the sequence.

        Returns:
            The decision, cut behind the first ending token and at the token budget.
        """
        self._state, decision = decide(self._rule, self._state, evidence, self._limits)
        decision = self._cut(decision)
        self.sequence.truncate(self.decided_length - len(decision.decided))
        self.sequence.extend(token.id for token in decision.decided)
        self.sequence.extend(decision.provisional)
        self.statistics.count_round(len(evidence.positions), decision)
        return decision

    def _cut(self, decision: Decision) -> Decision:
        """Ends the response where its limits say so; sets `finish_reason`."""
        before = self._state.num_decided - len(decision.decided)
        length, self.finish_reason = self._ending(decision.decided, self._limits.max_new_tokens - before)
        if self.finish_reason is None:
            return decision
        self._state = RuleState(before + length)
        rejection = decision.rejection if length == len(decision.decided) else None
        return Decision(decision.decided[:length], rejection=rejection)

    def _ending(self, decided: Sequence[Token], budget: int) -> tuple[int, FinishReason | None]:
        """How many of the tokens the response keeps, and why it ends there; None where it goes on."""
        ids = [token.id for token in decided[:budget]]
        reason = FinishReason.LENGTH if len(ids) == budget else None
        for index, token in enumerate(ids):
            if token in self._limits.ending_ids:
                ids, reason = ids[: index + 1], FinishReason.STOP_TOKEN
                break
        stop = self._find_stop(ids)
        return (len(ids), reason) if stop is None else (stop, FinishReason.STOP_STRING)
