"""Check the distributions that drafts were drawn from, as sent by the client."""

import math
from collections.abc import Sequence

from fly.errors import InvalidRequest
from fly.types import SparseDistribution
from services.engine.head.sampler import MOST_PROPOSED

_TOLERANCE = 1e-3


def check_distributions(
    distributions: Sequence[SparseDistribution], drafts: Sequence[int], vocab_size: int
) -> None:
    """Raise `InvalidRequest` unless every draft has a valid distribution (which may be empty) or none has."""
    if distributions and len(distributions) != len(drafts):
        raise InvalidRequest.of("distributions", f"are {len(distributions)}, drafts are {len(drafts)}")
    for index, (distribution, draft) in enumerate(zip(distributions, drafts, strict=False)):
        if (fault := _fault(distribution, draft, vocab_size)) is not None:
            field, description = fault
            raise InvalidRequest.of(f"distributions[{index}]{field}", description)


def _fault(distribution: SparseDistribution, draft: int, vocab_size: int) -> tuple[str, str] | None:
    """Return the invalid field and a description, or None."""
    ids, probabilities = distribution.ids, distribution.probabilities
    if not ids and not probabilities:
        return None
    if not 1 <= len(ids) <= MOST_PROPOSED:
        return ".ids", f"are {len(ids)}, must be 1 to {MOST_PROPOSED}"
    if len(probabilities) != len(ids):
        return ".probabilities", f"are {len(probabilities)}, ids are {len(ids)}"
    if not all(0 <= token < vocab_size for token in ids):
        return ".ids", f"must all be 0 to {vocab_size - 1}"
    if len(set(ids)) < len(ids):
        return ".ids", "must be distinct"
    if draft not in ids:
        return ".ids", f"lack the draft {draft}"
    if not all(0 < probability <= 1 + _TOLERANCE for probability in probabilities):
        return ".probabilities", "must all be above 0 and at most 1"
    if abs((total := math.fsum(probabilities)) - 1) > _TOLERANCE:
        return ".probabilities", f"have a sum of {total}, must be 1"
    return None
