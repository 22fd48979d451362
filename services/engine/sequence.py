"""One sequence of the engine: its token ids, and how far their KV is computed."""

from collections.abc import Generator, Sequence

from fly.blocks import BLOCK_TOKENS, BlockChain
from fly.errors import InvalidRequest
from fly.messages import Open
from fly.sequence import ReplicatedSequence, SequenceUpdate, StaleReason, StaleState
from fly.types import SparseDistribution
from services.engine.base import ForwardInput, Job, KvSlot, Scores
from services.engine.memory.prefix_cache import NULL_PREFIX_CACHE, PrefixCache


class EngineSequence(ReplicatedSequence):
    """A server's copy of a client's sequence, with KV memory.

    Its state is its token ids; those without KV are computed when a job needs them. Its owner may use it
    between two calls of `Engine.run`; during a run only the job may.

    Attributes:
        opening: The parameters that its stream was opened with.
    """

    def __init__(
        self,
        opening: Open,
        slot: KvSlot,
        vocab_size: int,
        context_length: int,
        chunk_tokens: int,
        prefix_cache: PrefixCache = NULL_PREFIX_CACHE,
    ) -> None:
        super().__init__(vocab_size, context_length)
        self.opening = opening
        self.slot = slot
        self._chunk_tokens = chunk_tokens
        self._prefix_cache = prefix_cache
        self._chain = BlockChain(opening.cache_salt)
        self._num_computed = 0
        # NOTE: the engine's thread may evict while the owner works on the sequence. It only increments this
        # counter, so nothing that the owner writes can undo an eviction.
        self._evictions = 0
        self._evictions_at_run = 0
        self._evictions_at_update = 0

    @property
    def num_computed(self) -> int:
        """Tokens at the front whose KV is in memory."""
        return self._num_computed if self._evictions_at_run == self._evictions else 0

    def apply(self, update: SequenceUpdate) -> int:
        """Apply an update as `ReplicatedSequence.apply` does; after an eviction only a replay (`keep = 0`).

        Raises:
            StaleState: The sequence was evicted, or its tokens are not those that the update keeps.
        """
        evictions = self._evictions
        if self._evictions_at_update != evictions and update.keep > 0:
            raise StaleState(StaleReason.EVICTED)
        unchanged = super().apply(update)
        self._evictions_at_update = evictions
        self._forget_computed(unchanged)
        return unchanged

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that the server made itself, such as a drafter's draft."""
        self.tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Drop all tokens from position `length` on."""
        self.tokens.truncate(length)
        self._forget_computed(length)

    def evict(self) -> None:
        """Record that its KV memory was evicted: its next step raises `StaleState`."""
        self._evictions += 1

    def score(
        self,
        num_outputs: int = 1,
        proposals: Sequence[SparseDistribution] = (),
        is_proposing: bool = False,
    ) -> Job[Scores]:
        """Compute the tokens without KV, in chunks; return the scores of the last `num_outputs` positions.

        `proposals` are the distributions that the drafts among them, `num_outputs - 1`, were drawn from,
        empty if unknown. If `is_proposing`, the chosen tokens are drafts themselves.

        Raises:
            StaleState: Its memory was evicted.
            InvalidRequest: It has fewer tokens than `num_outputs`, or more than the context allows.
        """
        self._start_run()
        if not 1 <= num_outputs <= len(self.tokens):
            raise InvalidRequest.of("num_outputs", f"is {num_outputs}, must be 1 to {len(self.tokens)}")
        if len(self.tokens) > self._context_length:
            raise InvalidRequest.of(
                "tokens",
                f"are {len(self.tokens)}, must be at most {self._context_length}, the context length",
            )
        end = len(self.tokens)
        num_reused = yield from self._prefill(end - num_outputs)
        start = min(self._num_computed, end - num_outputs)
        scores = yield self._forward_input(start, end, num_reused, num_outputs, proposals, is_proposing)
        self._record_computed(end)
        return scores

    def _start_run(self) -> None:
        """Check that it was not evicted since its last update; from now on only the job may use it."""
        if self._evictions_at_update != self._evictions:
            raise StaleState(StaleReason.EVICTED)
        self._num_computed = self.num_computed
        self._evictions_at_run = self._evictions

    def _prefill(self, first_output: int) -> Generator[ForwardInput, Scores, int]:
        """Compute chunks until the rest fits into one, which includes the outputs.

        Returns:
            Tokens that were shared from another sequence after the last chunk.
        """
        num_reused = self._reuse_prefix(first_output)
        while (
            len(self.tokens) - self._num_computed > self._chunk_tokens and self._num_computed < first_output
        ):
            end = min(self._num_computed + self._chunk_tokens, first_output)
            yield self._forward_input(self._num_computed, end, num_reused)
            self._record_computed(end)
            num_reused = self._reuse_prefix(first_output)
        return num_reused

    def _reuse_prefix(self, first_output: int) -> int:
        """Share cached KV of the tokens before `first_output`; return the number of tokens gained."""
        wanted, computed = first_output // BLOCK_TOKENS, self._num_computed // BLOCK_TOKENS
        if wanted <= computed:
            return 0
        keys = self._chain.keys(self.tokens.ids, wanted)
        found = self._prefix_cache.reuse(self.slot, keys, computed)
        before = self._num_computed
        self._num_computed = max(before, found * BLOCK_TOKENS)
        return self._num_computed - before

    def _record_computed(self, end: int) -> None:
        """Record that all tokens before `end` have KV; share the blocks that will never be rolled back."""
        self._num_computed = end
        num_blocks = min(self.decided, end) // BLOCK_TOKENS
        if num_blocks > self._prefix_cache.num_published(self.slot):
            self._prefix_cache.publish(self.slot, self._chain.keys(self.tokens.ids, num_blocks))

    def _forget_computed(self, length: int) -> None:
        """Drop the KV and block keys of the tokens from position `length` on, which have changed."""
        self._num_computed = min(self._num_computed, length)
        self._chain.truncate(length)

    def _forward_input(
        self,
        start: int,
        end: int,
        num_reused: int,
        num_outputs: int = 0,
        proposals: Sequence[SparseDistribution] = (),
        is_proposing: bool = False,
    ) -> ForwardInput:
        ids = self.tokens.ids
        return ForwardInput(
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
