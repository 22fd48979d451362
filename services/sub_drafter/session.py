"""One sequence at a sub-drafter: updates in, proposals out, its decided response remembered at the end."""

import contextlib

from fly.errors import InvalidRequest
from fly.lookup.response_cache import END
from fly.messages import Draft, DraftStep
from fly.sequence import ReplicatedSequence, SequenceUpdate, StaleState
from services.sub_drafter.engines.base import SequenceLookup

_LEAD_IN = 4
"""Last tokens of a prompt that are remembered with its response: by them its beginning is found."""


class LookupSession:
    """What is known of the sequence, and its look-up."""

    def __init__(self, lookup: SequenceLookup, prompt_length: int, max_tokens: int) -> None:
        """Starts empty; a sequence may have `max_tokens`."""
        self._known = ReplicatedSequence(END, max_tokens)
        self._lookup = lookup
        self._prompt_length = prompt_length
        self._num_indexed = 0

    async def step(self, step: DraftStep) -> Draft:
        """Takes the update over and proposals."""
        known = self._known
        unchanged = known.apply(step.update)
        # NOTE: its own proposal, which the peer takes for known here, is not worth being indexed.
        self._lookup.update(known.tokens.ids, min(unchanged, self._num_indexed))
        self._num_indexed = len(known)
        snippets = self._lookup.snippets(step.snippet_tokens) if step.snippet_tokens else ()
        proposal = self._lookup.propose(step.max_tokens)
        known.tokens.extend(proposal.tokens)
        return Draft(
            step.update.step_id,
            proposal.tokens,
            match_length=proposal.match_length,
            confidence=proposal.confidence,
            snippets=tuple(snippets),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Takes over what the sequence came to; one that cannot be applied says nothing new."""
        with contextlib.suppress(StaleState, InvalidRequest):
            self._known.apply(last)

    def close(self) -> None:
        """Hands over what was decided of the response, however the stream ended."""
        start = max(0, self._prompt_length - _LEAD_IN)
        decided = self._known.decided
        self._lookup.finish(self._known.tokens.ids[start:decided] if decided > self._prompt_length else ())
