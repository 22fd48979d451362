"""Validate replica responses.

An invalid response marks the replica unhealthy; it is never reported as a client error.
"""

import math

from fly.errors import NotReady
from fly.messages import Draft, Verification
from fly.types import SparseDistribution

_MOST_PROPOSED = 64
_TOLERANCE = 1e-3


def check_verification(
    answer: Verification, num_drafts: int, vocab_size: int, num_logprobs: int | None = None
) -> None:
    """Check that an answer has the requested shape; raises NotReady."""
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
    """Check a draft's length, its ids and its distributions; raises NotReady."""
    if len(draft.tokens) > max_tokens:
        raise NotReady(
            f"the drafter answered {len(draft.tokens)} tokens, at most {max_tokens} were requested"
        )
    if draft.tokens and max(draft.tokens) >= vocab_size:
        raise NotReady(f"the drafter proposed {max(draft.tokens)}, the vocabulary ends at {vocab_size}")
    if draft.distributions and len(draft.distributions) != len(draft.tokens):
        found = f"{len(draft.distributions)} distributions for {len(draft.tokens)} tokens"
        raise NotReady(f"the drafter answered {found}")
    for token, distribution in zip(draft.tokens, draft.distributions, strict=False):
        if not _can_be_drawn_from(distribution, token, vocab_size):
            raise NotReady(f"the drafter proposed {token} from an invalid distribution")


def _can_be_drawn_from(distribution: SparseDistribution, token: int, vocab_size: int) -> bool:
    """Return True if the distribution is valid and contains the token, or is empty."""
    ids, probabilities = distribution.ids, distribution.probabilities
    if not ids and not probabilities:
        return True
    has_shape = len(ids) == len(probabilities) <= _MOST_PROPOSED and len(set(ids)) == len(ids)
    is_known = token in ids and max(ids) < vocab_size
    is_distribution = min(probabilities, default=0) > 0 and abs(math.fsum(probabilities) - 1) <= _TOLERANCE
    return has_shape and is_known and is_distribution
