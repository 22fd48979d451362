"""Drafts that follow from the grammar of a request: text that must come next whatever is chosen."""

from collections.abc import Sequence

from fly.messages import Draft
from fly.response import Statistics
from fly.sequence import TokenSequence
from router.generation.predictions import NO_DRAFT, certain_draft
from router.requests.request import PreparedRequest
from services.common.grammars.library import GrammarError


class ForcedDrafts:
    """The forced drafts of one response. The target still decides how it spells the text in tokens.

    Attributes:
        is_pending: True if the draft of the present round is a forced one.
    """

    def __init__(self, request: PreparedRequest) -> None:
        """Begin a response; a grammar that may force a long text has no drafts (`forced_characters`).

        NOTE: the library spells all that text in one piece, 1 to 2 us per character; the event loop waits.
        """
        self.is_pending = False
        grammar = request.grammar if request.plan.drafts else None
        self._follower = None if grammar is None else grammar.follower()
        self._prompt_length = len(request.prompt_ids)
        self._ending_ids = request.sampling.ending_ids
        self._needs_distributions = request.needs_distributions

    def propose(self, sequence: TokenSequence, least: int, most: int) -> Draft:
        """Return the forced tokens after the sequence, at most `most`; none if fewer than `least`."""
        if self._follower is None:
            return NO_DRAFT
        try:
            follows = self._follower.move(sequence.ids[self._prompt_length :])
            tokens = self._follower.forced()[:most] if follows else []
        except GrammarError:  # the target reports it, if it is a fault there, too
            self._follower, tokens = None, []
        self.is_pending = len(tokens) >= max(1, least)
        return certain_draft(tokens, self._needs_distributions) if self.is_pending else NO_DRAFT

    def num_allowed(self, sequence: TokenSequence, drafts: Sequence[int]) -> int:
        """Return the number of drafts before the first one that the grammar excludes.

        All of them if the grammar is not followed here: the target excludes them then.
        """
        if self._follower is None:
            return len(drafts)
        try:
            return self._follower.num_allowed(sequence.ids[self._prompt_length :], drafts, self._ending_ids)
        except GrammarError:
            self._follower = None
            return len(drafts)

    def record(self, num_drafts: int, num_accepted: int, statistics: Statistics) -> None:
        """Record the result of the pending draft."""
        self.is_pending = False
        statistics.forced += num_drafts
        statistics.forced_accepted += num_accepted
