"""The session of one sequence at a look-up engine: apply updates, return proposals, cache the response."""

import asyncio
import contextlib

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Draft, DraftStep, Open
from flyserve.core.sequence import ReplicatedSequence, SequenceUpdate, StaleState
from flyserve.core.types import SparseDistribution
from services.lookup.config import SuffixConfig
from services.lookup.engine import SuffixLookup
from services.lookup.index.response_cache import END

_LEAD_IN = 4
"""Last tokens of a prompt that are cached with its response, so that its beginning can be looked up."""


class LookupSession:
    """The server's copy of one sequence, and its look-up."""

    def __init__(self, lookup: SuffixLookup, opening: Open, config: SuffixConfig) -> None:
        """Start with an empty sequence."""
        self._sequence = ReplicatedSequence(vocab_size=END, context_length=config.max_tokens)
        self._lookup = lookup
        self._opening = opening
        self._max_draft = config.max_draft
        self._num_indexed = 0

    async def step(self, step: DraftStep) -> Draft:
        """Apply the update; return a draft, and snippets, if they are requested.

        Raises:
            StaleState, InvalidRequest: As `ReplicatedSequence.apply`.
            InvalidRequest: A sequence without copies has no room in the indexes.
        """
        sequence, sampling = self._sequence, self._opening.sampling
        self._num_indexed = min(self._num_indexed, sequence.apply(step.update))
        ids, tokens = sequence.tokens.ids, await self._propose(step.max_tokens) if step.max_tokens else ()
        snippets = self._lookup.snippets(ids, step.snippet_tokens) if step.snippet_tokens else ()
        if step.end_at_stop:
            tokens = until_stop(tokens, sampling.ending_ids)
        # NOTE: the draft becomes part of the sequence, as the client assumes, but is not indexed.
        sequence.tokens.extend(tokens)
        certain = map(SparseDistribution.certain, tokens if sampling.needs_distributions else ())
        return Draft(step.update.step_id, tokens, distributions=tuple(certain), snippets=tuple(snippets))

    async def _propose(self, max_tokens: int) -> tuple[int, ...]:
        """Return a draft; only a client that requests drafts has its sequence indexed.

        One without copies must depend on the whole sequence, not on the parts that are indexed so far.
        """
        ids = self._sequence.tokens.ids
        self._lookup.update(ids, self._num_indexed)
        self._num_indexed = len(ids)
        while self._opening.without_copies and self._lookup.index():
            await asyncio.sleep(0)
        return self._lookup.propose(min(max_tokens, self._max_draft))

    async def finish(self, last: SequenceUpdate) -> None:
        """Apply the last update; ignore one that cannot be applied."""
        with contextlib.suppress(StaleState, InvalidRequest):
            self._sequence.apply(last)

    def close(self) -> None:
        """Cache the decided tokens of the response, even if the stream broke."""
        prompt_length, decided = self._opening.prompt_length, self._sequence.decided
        start = max(0, prompt_length - _LEAD_IN)
        self._lookup.finish(self._sequence.tokens.ids[start:decided] if decided > prompt_length else ())


def until_stop(tokens: tuple[int, ...], ending_ids: frozenset[int]) -> tuple[int, ...]:
    """Return the tokens up to the first that ends the response, which is included."""
    return tokens[: next((i + 1 for i, token in enumerate(tokens) if token in ending_ids), None)]
