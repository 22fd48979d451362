"""The session of one sequence at a sub-drafter: updates in, proposals out, the response cached at the end."""

import contextlib

from fly.errors import InvalidRequest
from fly.lookup.response_cache import END
from fly.messages import Draft, DraftStep
from fly.sequence import ReplicatedSequence, SequenceUpdate, StaleState
from services.sub_drafter.engines.base import SequenceLookup

_LEAD_IN = 4
"""Last tokens of a prompt that are cached with its response, so that its beginning can be looked up."""


class LookupSession:
    """The server's copy of one sequence, and its look-up."""

    def __init__(self, lookup: SequenceLookup, prompt_length: int, max_tokens: int) -> None:
        """Start with an empty sequence, which may have at most `max_tokens` tokens."""
        self._sequence = ReplicatedSequence(vocab_size=END, context_length=max_tokens)
        self._lookup = lookup
        self._prompt_length = prompt_length
        self._num_indexed = 0

    async def step(self, step: DraftStep) -> Draft:
        """Apply the update and return a proposal, and snippets if they are requested.

        Raises:
            StaleState: The update keeps tokens that this session does not hold.
            InvalidRequest: A field violates a limit.
        """
        sequence = self._sequence
        unchanged = sequence.apply(step.update)
        # NOTE: the proposal becomes part of the sequence, as the client assumes, but is not indexed.
        self._lookup.update(sequence.tokens.ids, min(unchanged, self._num_indexed))
        self._num_indexed = len(sequence)
        snippets = self._lookup.snippets(step.snippet_tokens) if step.snippet_tokens else ()
        proposal = self._lookup.propose(step.max_tokens)
        sequence.tokens.extend(proposal.tokens)
        return Draft(
            step.update.step_id,
            proposal.tokens,
            match_length=proposal.match_length,
            confidence=proposal.confidence,
            snippets=tuple(snippets),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Apply the last update; ignore one that cannot be applied."""
        with contextlib.suppress(StaleState, InvalidRequest):
            self._sequence.apply(last)

    def close(self) -> None:
        """Cache the decided tokens of the response, even if the stream broke."""
        start = max(0, self._prompt_length - _LEAD_IN)
        decided = self._sequence.decided
        self._lookup.finish(self._sequence.tokens.ids[start:decided] if decided > self._prompt_length else ())
