"""One sequence at a server: the token ids that it knows, and how far its KV reaches."""

from collections.abc import Generator, Sequence

from fly.blocks import BLOCK_TOKENS, BlockChain
from fly.errors import InvalidRequest
from fly.messages import Open
from fly.sequence import ReplicatedSequence, SequenceUpdate, StaleReason, StaleState
from fly.types import SparseDistribution
from services.engine.base import Job, Scores, Slot, Work
from services.engine.memory.prefix_cache import NO_PREFIXES, Prefixes


class EngineSequence(ReplicatedSequence):
    """A server's side of the truth by position, with KV memory.

    Its state is the token ids that it knows; what of them has no KV is computed again when it is needed.
    Between `Engine.run` calls its owner may use it freely; during a run only the job may.

    Attributes:
        opening: What its stream was opened with.
        slot: Its place in KV memory.
    """

    def __init__(
        self,
        opening: Open,
        slot: Slot,
        vocab_size: int,
        context_length: int,
        chunk_tokens: int,
        prefixes: Prefixes = NO_PREFIXES,
    ) -> None:
        super().__init__(vocab_size, context_length)
        self.opening = opening
        self.slot = slot
        self._chunk_tokens = chunk_tokens
        self._prefixes = prefixes
        self._chain = BlockChain(opening.cache_salt)
        self._num_computed = 0
        # NOTE: an eviction may come, on the engine's thread, at any point of what the owner does on its own:
        # it only counts up, so nothing that the owner writes can undo it.
        self._evictions = 0
        self._computed_since = 0
        self._told_since = 0

    @property
    def num_computed(self) -> int:
        """Tokens at the front whose KV is in memory."""
        return self._num_computed if self._computed_since == self._evictions else 0

    def apply(self, update: SequenceUpdate) -> int:
        """As `ReplicatedSequence.apply`; a replay from `keep = 0` mends an eviction."""
        evictions = self._evictions
        if self._told_since != evictions and update.keep > 0:
            raise StaleState(StaleReason.EVICTED)
        unchanged = super().apply(update)
        self._told_since = evictions
        self._forget_computed(unchanged)
        return unchanged

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens of the server's own: a drafter knows its draft."""
        self.tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Forgets all tokens from position `length` on."""
        self.tokens.truncate(length)
        self._forget_computed(length)

    def evict(self) -> None:
        """Its KV memory has been taken away; its next step is stale."""
        self._evictions += 1

    def score(
        self,
        num_outputs: int = 1,
        proposals: Sequence[SparseDistribution] = (),
        is_proposing: bool = False,
    ) -> Job[Scores]:
        """Computes what has no KV yet, in chunks, and answers for the last `num_outputs` positions.

        Args:
            num_outputs: How many.
            proposals: What the drafts among them, `num_outputs - 1`, were drawn from; empty where nothing is
                known of it.
            is_proposing: The choices are drafts themselves.

        Raises:
            StaleState: Its memory was taken away.
            InvalidRequest: It has fewer tokens than `num_outputs`, or more than the context holds.
        """
        self._begin()
        if not 1 <= num_outputs <= len(self.tokens):
            raise InvalidRequest.of("num_outputs", f"is {num_outputs}, must be 1 to {len(self.tokens)}")
        if len(self.tokens) > self._context_length:
            raise InvalidRequest.of(
                "tokens", f"are {len(self.tokens)}, the context holds {self._context_length}"
            )
        end = len(self.tokens)
        num_reused = yield from self._prefill(end - num_outputs)
        start = min(self._num_computed, end - num_outputs)
        scores = yield self._work(start, end, num_reused, num_outputs, proposals, is_proposing)
        self._computed(end)
        return scores

    def _begin(self) -> None:
        """From here on the job alone uses the sequence; raises where it lost its memory since it was told."""
        if self._told_since != self._evictions:
            raise StaleState(StaleReason.EVICTED)
        self._num_computed = self.num_computed
        self._computed_since = self._evictions

    def _prefill(self, first_output: int) -> Generator[Work, Scores, int]:
        """Computes chunks until the rest fits into one, which answers.

        Returns:
            Tokens that were taken from another sequence after the last chunk.
        """
        num_reused = self._reuse(first_output)
        while (
            len(self.tokens) - self._num_computed > self._chunk_tokens and self._num_computed < first_output
        ):
            end = min(self._num_computed + self._chunk_tokens, first_output)
            yield self._work(self._num_computed, end, num_reused)
            self._computed(end)
            num_reused = self._reuse(first_output)
        return num_reused

    def _reuse(self, first_output: int) -> int:
        """Takes over what memory knows of the tokens before `first_output`; tells how many were gained."""
        wanted, known = first_output // BLOCK_TOKENS, self._num_computed // BLOCK_TOKENS
        if wanted <= known:
            return 0
        found = self._prefixes.reuse(self.slot, self._chain.keys(self.tokens.ids, wanted), known)
        before = self._num_computed
        self._num_computed = max(before, found * BLOCK_TOKENS)
        return self._num_computed - before

    def _computed(self, end: int) -> None:
        """All tokens before `end` have KV; what of them will never be rolled back is for others too."""
        self._num_computed = end
        num_blocks = min(self.decided, end) // BLOCK_TOKENS
        if num_blocks > self._prefixes.num_published(self.slot):
            self._prefixes.publish(self.slot, self._chain.keys(self.tokens.ids, num_blocks))

    def _forget_computed(self, length: int) -> None:
        """The tokens from position `length` on have changed."""
        self._num_computed = min(self._num_computed, length)
        self._chain.truncate(length)

    def _work(
        self,
        start: int,
        end: int,
        num_reused: int,
        num_outputs: int = 0,
        proposals: Sequence[SparseDistribution] = (),
        is_proposing: bool = False,
    ) -> Work:
        ids = self.tokens.ids
        return Work(
            slot=self.slot,
            start=start,
            tokens=ids[start:end],
            num_outputs=num_outputs,
            sampling=self.opening.sampling,
            prompt_length=self.opening.prompt_length,
            history=ids,
            drafts=[*ids[end - num_outputs + 1 : end], -1] if num_outputs else (),
            entropy=self.opening.entropy,
            num_logprobs=self.opening.num_logprobs,
            num_reused=num_reused,
            proposals=proposals,
            is_proposing=is_proposing,
        )
