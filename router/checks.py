"""What no sound replica answers: a peer that does is broken, and its client's request is not to blame."""

from fly.errors import NotReady
from fly.messages import Draft, Verification


def check_verification(answer: Verification, num_drafts: int, vocab_size: int) -> None:
    """Raises NotReady where the answer does not fit the question."""
    positions = num_drafts + 1
    if len(answer.choices) != positions or len(answer.entropies) != positions:
        found = f"{len(answer.choices)} choices and {len(answer.entropies)} entropies"
        raise NotReady(f"the target answered {found} for {positions} positions")
    if max(answer.choices) >= vocab_size:
        raise NotReady(f"the target chose {max(answer.choices)}, its vocabulary ends at {vocab_size}")
    if answer.excluded_drafts and max(answer.excluded_drafts) >= num_drafts:
        raise NotReady(f"the target excludes draft {max(answer.excluded_drafts)} of {num_drafts}")


def check_draft(draft: Draft, max_tokens: int, vocab_size: int) -> None:
    """Raises NotReady where the draft is too long, or speaks of tokens that the target does not know."""
    if len(draft.tokens) > max_tokens:
        raise NotReady(
            f"the drafter answered {len(draft.tokens)} tokens, at most {max_tokens} were asked for"
        )
    if draft.tokens and max(draft.tokens) >= vocab_size:
        raise NotReady(f"the drafter proposed {max(draft.tokens)}, the vocabulary ends at {vocab_size}")
