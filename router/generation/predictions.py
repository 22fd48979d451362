"""Drafts that the router takes from the prediction of a request, without a drafter."""

from collections.abc import Sequence

from fly.lookup.prediction import PredictionLookup
from fly.messages import Draft
from fly.response import Statistics
from fly.sequence import TokenSequence
from fly.types import SparseDistribution
from router.requests.request import PreparedRequest

NO_DRAFT = Draft(step_id=0, tokens=())


class Predictions:
    """The predicted drafts of one response.

    Attributes:
        is_pending: True if the draft of the present round was taken from the prediction.
    """

    def __init__(self, request: PreparedRequest) -> None:
        self.is_pending = False
        self._lookup = PredictionLookup(request.prediction, len(request.prompt_ids))
        self._needs_distributions = request.needs_distributions

    def propose(self, sequence: TokenSequence, most: int) -> Draft:
        """Return a draft of at most `most` tokens after the sequence; an empty one if none is likely."""
        tokens = self._lookup.propose(sequence.ids, most)
        self.is_pending = bool(tokens)
        return certain_draft(tokens, self._needs_distributions)

    def record(self, num_drafts: int, num_accepted: int, statistics: Statistics) -> None:
        """Record the result of the pending draft."""
        self.is_pending = False
        self._lookup.record(num_accepted)
        statistics.predicted += num_drafts
        statistics.predicted_accepted += num_accepted


def certain_draft(tokens: Sequence[int], needs_distributions: bool) -> Draft:
    """Return a draft that no model made; the distribution of each token has all its mass on it."""
    if not tokens:
        return NO_DRAFT
    certain = (SparseDistribution((token,), (1.0,)) for token in tokens) if needs_distributions else ()
    return Draft(step_id=0, tokens=tuple(tokens), distributions=tuple(certain))
