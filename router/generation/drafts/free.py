"""Drafts that cost nothing: from the prediction of a request, and from the text that its grammar forces."""

from collections.abc import Sequence

from flyserve.core.messages import Draft
from flyserve.core.round_record import DraftOrigin, RoundRecord
from flyserve.core.sequence import TokenSequence
from flyserve.core.types import SparseDistribution
from router.generation.drafts.source import WantedDraft
from router.requests.request import PreparedRequest
from services.common.grammars.library import GrammarError
from services.lookup.index.prediction import PredictionLookup


class PredictedDrafts:
    """The predicted drafts of one response."""

    origin = DraftOrigin.PREDICTION

    def __init__(self, request: PreparedRequest) -> None:
        self._lookup = PredictionLookup(request.prediction, len(request.prompt_ids))
        self._needs_distributions = request.needs_distributions

    async def propose(self, wanted: WantedDraft) -> Draft | None:
        """Return a draft; None if none is likely."""
        tokens = self._lookup.propose(wanted.sequence.ids, wanted.length)
        return certain_draft(tokens, self._needs_distributions) if tokens else None

    def record(self, round: RoundRecord) -> None:
        """Record how much of a draft was right."""
        if round.origin is self.origin:
            self._lookup.record(round.num_accepted)


class ForcedText:
    """The text that a grammar forces, in tokens. The target still decides how it spells the text.

    A grammar that may force a long text has none (`forced_characters`).

    NOTE: the library spells all that text in one piece, 1 to 2 us per character; the event loop waits. So it
    does once for a text that the response follows.
    """

    def __init__(self, request: PreparedRequest) -> None:
        """Begin a response that has a grammar."""
        assert request.grammar is not None
        self._follower = request.grammar.follower()
        self._prompt_length = len(request.prompt_ids)
        self._ending_ids = request.sampling.ending_ids
        self._num_kept = 0
        """Tokens of the response that were decided in the last call."""
        self.needs_distributions = request.needs_distributions

    def after(self, sequence: TokenSequence, decided: int) -> Sequence[int]:
        """Return the forced tokens after the sequence, of which `decided` are never rolled back."""
        if self._follower is None:
            return ()
        try:
            follows = self._follower.move(*self._response(sequence, decided))
            return self._follower.forced() if follows else ()
        except GrammarError:  # the target reports it, if it is a fault there, too
            self._follower = None
            return ()

    def num_allowed(self, sequence: TokenSequence, decided: int, drafts: Sequence[int]) -> int:
        """Return the number of drafts before the first one that the grammar excludes.

        All of them if the grammar is not followed here: the target excludes them then.
        """
        if self._follower is None:
            return len(drafts)
        try:
            tokens, num_kept = self._response(sequence, decided)
            return self._follower.num_allowed(tokens, drafts, self._ending_ids, num_kept)
        except GrammarError:
            self._follower = None
            return len(drafts)

    def _response(self, sequence: TokenSequence, decided: int) -> tuple[Sequence[int], int]:
        """Return the tokens of the response that may have changed since the last call, and how many have not.

        So a round costs its own tokens, however long the response is.
        """
        num_kept, self._num_kept = self._num_kept, decided - self._prompt_length
        return sequence.ids[self._prompt_length + num_kept :], num_kept


class ForcedDrafts:
    """Drafts of forced text."""

    origin = DraftOrigin.GRAMMAR

    def __init__(self, text: ForcedText, is_long: bool) -> None:
        """Propose drafts of any length or, if `is_long`, of at least half of what the round wants."""
        self._text = text
        self._is_long = is_long

    async def propose(self, wanted: WantedDraft) -> Draft | None:
        """Return a draft; None if too little is forced."""
        least = (wanted.length + 1) // 2 if self._is_long and not wanted.is_first else 1
        tokens = self._text.after(wanted.sequence, wanted.decided)[: wanted.length]
        return certain_draft(tokens, self._text.needs_distributions) if len(tokens) >= least else None


def certain_draft(tokens: Sequence[int], needs_distributions: bool) -> Draft:
    """Return a draft that no model made."""
    certain = map(SparseDistribution.certain, tokens if needs_distributions else ())
    return Draft(step_id=0, tokens=tuple(tokens), distributions=tuple(certain))
