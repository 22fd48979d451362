"""Validate responses of replicas: an invalid one is a fault of the replica, never of the client."""

from fly.errors import NotReady
from fly.limits import check_distributions
from fly.messages import Draft, Verification


def check_verification(
    answer: Verification, num_drafts: int, vocab_size: int, num_logprobs: int | None = None
) -> None:
    """Raise NotReady if the verification does not fit its step."""
    positions = num_drafts + 1
    if len(answer.choices) != positions or len(answer.entropies) != positions:
        found = f"{len(answer.choices)} choices and {len(answer.entropies)} entropies"
        raise NotReady(f"the target answered {found} for {positions} positions")
    if max(answer.choices) >= vocab_size:
        raise NotReady(f"the target chose {max(answer.choices)}, its vocabulary ends at {vocab_size}")
    if answer.excluded_drafts and max(answer.excluded_drafts) >= num_drafts:
        raise NotReady(f"the target excludes draft {max(answer.excluded_drafts)} of {num_drafts}")
    if num_logprobs is not None and len(answer.logprobs) != positions:
        raise NotReady(
            f"the target answered {len(answer.logprobs)} log-probabilities for {positions} positions"
        )


def check_draft(draft: Draft, max_tokens: int, vocab_size: int) -> None:
    """Raise NotReady if the draft is too long, or has invalid tokens or distributions."""
    if len(draft.tokens) > max_tokens:
        raise NotReady(
            f"the drafter answered {len(draft.tokens)} tokens, at most {max_tokens} were requested"
        )
    if draft.tokens and max(draft.tokens) >= vocab_size:
        raise NotReady(f"the drafter proposed {max(draft.tokens)}, the vocabulary ends at {vocab_size}")
    if faults := [*check_distributions(draft.distributions, draft.tokens, vocab_size)]:
        raise NotReady(f"the drafter returned invalid {faults[0].field}: {faults[0].description}")
