"""The rule that ends drafts that cannot pay: by measured costs, and by the load of the target. Pure."""

from dataclasses import dataclass

from flyserve.core.messages import VERIFIED_TOKENS, ModelInfo

_MARGIN = 1.5
"""Drafts end if they need this many times the tokens that a round can emit.

The costs are measured once, perhaps on a busy machine, and know neither a sub-drafter nor drafting ahead.
"""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Costs of one round of one sequence on idle replicas, without the wire, and what they require.

    Attributes:
        draft_length: Draft tokens of a round.
        draft_s: Seconds to draft them without a sub-drafter, and not ahead.
        verify_s: Seconds to verify them.
        decode_s: Seconds to decode one token without a draft.
    """

    draft_length: int
    draft_s: float
    verify_s: float
    decode_s: float

    @property
    def tau(self) -> float:
        """Tokens that a round must emit to be as fast as plain decoding."""
        return (self.draft_s + self.verify_s) / self.decode_s

    @property
    def can_pay(self) -> bool:
        """True if a round can emit `tau` tokens: its drafts and the target's own token are enough."""
        return self.tau < self.draft_length + 1

    @property
    def is_hopeless(self) -> bool:
        """True if a round would have to emit many more tokens than it can: no draft is requested then."""
        return self.tau >= _MARGIN * (self.draft_length + 1)

    def describe(self) -> str:
        """Return one line: the costs, and the tau from which speculation pays, or a warning."""
        costs = (
            f"a draft of {self.draft_length} takes {_ms(self.draft_s)},"
            f" its verification {_ms(self.verify_s)}, a token without drafts {_ms(self.decode_s)}"
        )
        if self.can_pay:
            return f"drafts pay where a round emits more than {self.tau:.1f} tokens (its tau): {costs}"
        result = "; responses are decoded without drafts" if self.is_hopeless else ""
        return (
            f"speculation cannot pay: a round would have to emit {self.tau:.1f} tokens (its tau), but emits"
            f" at most {self.draft_length + 1}: {costs}{result}; use a smaller or faster drafter, or one that"
            " looks tokens up (engine suffix)"
        )


def break_even(target: ModelInfo | None, drafter: ModelInfo | None, draft_length: int) -> BreakEven | None:
    """Return the costs of rounds with drafts of this length; None if a cost is unknown or nothing is drafted.

    The time of a verification is taken to be linear in its tokens, as between the two that were measured.
    """
    costs, drafting = target and target.costs, drafter and drafter.costs
    if not costs or not drafting or not draft_length or costs.decode_s <= 0:
        return None
    per_token_s = (costs.verify_s - costs.decode_s) / (VERIFIED_TOKENS - 1)
    return BreakEven(
        draft_length=draft_length,
        draft_s=draft_length * drafting.decode_s,
        verify_s=costs.decode_s + draft_length * max(0.0, per_token_s),
        decode_s=costs.decode_s,
    )


def can_pay(target: ModelInfo, drafter: ModelInfo, draft_length: int) -> bool:
    """Return False if even drafts of this length that are accepted as a whole cost much more than they save.

    Unknown costs are no reason. Drafts that are looked up are judged by what they save (`LookupBenefit`).
    """
    found = break_even(target, drafter, draft_length)
    return found is None or not found.is_hopeless or drafter.looks_up


def allowed_length(draft_length: int, open_sequences: int, max_sequences: int | None) -> int:
    """Return the length of the next draft: 0 if more than `max_sequences` are open at its target."""
    return 0 if max_sequences is not None and open_sequences > max_sequences else draft_length


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
