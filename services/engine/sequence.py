"""One sequence of the engine: its token ids, and how far their KV is computed."""

from collections.abc import Sequence
from dataclasses import dataclass

from flyserve.core.blocks import BLOCK_TOKENS, BlockChain, BlockKey
from flyserve.core.errors import InvalidRequest, NotReady
from flyserve.core.messages import Open
from flyserve.core.sequence import ReplicatedSequence, SequenceUpdate
from flyserve.core.types import SparseDistribution
from services.engine.base import NO_SLOT, ForwardInput, Job, KvSlot, Replan, Scores, TokenGrammar
from services.engine.future import EngineFuture
from services.engine.memory.prefix_cache import NULL_PREFIX_CACHE, PrefixCache


@dataclass(frozen=True, slots=True)
class _Outputs:
    """The last positions of a sequence that a forward scores; see `EngineSequence.score`."""

    number: int
    proposals: Sequence[SparseDistribution] = ()
    is_proposing: bool = False
    without_entropies: bool = False


class EngineSequence(ReplicatedSequence):
    """A server's copy of a client's sequence, with KV memory.

    Its state is its token ids; those without KV are computed when a job needs them, all of them again after
    the engine has preempted it. Its owner may use it between two calls of `Engine.run`; during a run only
    the job may.

    Attributes:
        opening: The parameters that its stream was opened with.
        grammar: That of `opening`, compiled; set before the first job.
        slot: Its slot in KV memory; none until it is admitted, and after it was closed.
        opened: The future of its open, until it is admitted.
        admission: Its place in the order of admissions; None while it has no memory.
    """

    def __init__(
        self,
        opening: Open,
        slot: KvSlot,
        vocab_size: int,
        context_length: int,
        chunk_tokens: int,
        prefix_cache: PrefixCache | None = NULL_PREFIX_CACHE,
    ) -> None:
        """Start an empty sequence; without a prefix cache its state neither rolls back nor is shared."""
        super().__init__(vocab_size, context_length)
        self.opening = opening
        self.grammar: TokenGrammar | None = None
        self.slot = slot
        self.opened: EngineFuture | None = None
        self.admission: int | None = None
        self._chunk_tokens = chunk_tokens
        self._prefix_cache = NULL_PREFIX_CACHE if prefix_cache is None else prefix_cache
        self._rolls_back = prefix_cache is not None
        self._chain = BlockChain(opening.cache_salt)
        # NOTE: only the engine's thread sets `_num_computed`, and only the owner, or its job, lowers
        # `_num_unchanged`: the engine may take the memory while the owner applies an update.
        self._num_computed = 0
        self._num_unchanged = 0
        self._num_reused = 0

    @property
    def priority(self) -> int:
        """Priority of its request; memory is taken from the lowest one first."""
        return self.opening.priority

    @property
    def num_computed(self) -> int:
        """Tokens at the front whose KV is in memory."""
        return min(self._num_computed, self._num_unchanged)

    def apply(self, update: SequenceUpdate) -> int:
        """Apply an update as `ReplicatedSequence.apply` does."""
        unchanged = super().apply(update)
        self._mark_changed(unchanged)
        return unchanged

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that the server made itself, such as a drafter's draft."""
        self.tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Drop all tokens from position `length` on."""
        self.tokens.truncate(length)
        self._mark_changed(length)

    def forget_kv(self) -> None:
        """Record that its KV memory was taken: its next input computes all tokens again."""
        self._num_computed = self._num_reused = 0

    def score(
        self,
        num_outputs: int = 1,
        proposals: Sequence[SparseDistribution] = (),
        is_proposing: bool = False,
        without_entropies: bool = False,
    ) -> Job[Scores]:
        """Compute the tokens without KV, in chunks; return the scores of the last `num_outputs` positions.

        `proposals` are the distributions that the drafts among them, `num_outputs - 1`, were drawn from,
        empty if unknown. If `is_proposing`, the chosen tokens are drafts themselves. Entropies are 0 if the
        step or the sequence is `without_entropies`.

        Raises:
            InvalidRequest: It has fewer tokens than `num_outputs`, or more than the context allows.
            NotReady: It has been closed.
        """
        if self.slot == NO_SLOT:
            raise NotReady("the sequence has been closed")
        if not 1 <= num_outputs <= len(self.tokens):
            raise InvalidRequest.of("num_outputs", f"is {num_outputs}, must be 1 to {len(self.tokens)}")
        if len(self.tokens) > self._context_length:
            raise InvalidRequest.of(
                "tokens",
                f"are {len(self.tokens)}, must be at most {self._context_length}, the context length",
            )
        is_kept = self._rolls_back or self.num_computed == self._num_computed
        self._num_computed, self._num_unchanged = self.num_computed if is_kept else 0, len(self.tokens)
        outputs = _Outputs(
            num_outputs, proposals, is_proposing, without_entropies or self.opening.without_entropies
        )
        while True:
            item = self._next_input(outputs)
            try:
                scores = yield item
            except Replan:
                continue
            self._record_computed(item.end)
            if item.num_outputs:
                return scores

    def decode(self, max_tokens: int, without_entropies: bool = False) -> Job[Scores]:
        """Choose a token, append it, and repeat; return the scores of all.

        Ends after `max_tokens` tokens, at the end of the context, or with a token that ends the response.
        `without_entropies` and errors are those of `score`.
        """
        ending_ids, parts = self.opening.sampling.ending_ids, list[Scores]()
        limit = min(max_tokens, self._context_length + 1 - len(self.tokens))
        while not parts or (len(parts) < limit and parts[-1].choices[0] not in ending_ids):
            scores = yield from self.score(without_entropies=without_entropies)
            self.tokens.extend(scores.choices)
            parts.append(scores)
        return Scores.joined(parts)

    def _next_input(self, outputs: _Outputs) -> ForwardInput:
        """Return the next chunk of the tokens without KV; the last one includes the outputs."""
        end = len(self.tokens)
        first_output = end - outputs.number
        if not self._rolls_back:
            # One further row, or all of them again.
            start = end - 1 if outputs.number == 1 and self._num_computed == end - 1 else 0
            return self._forward_input((), start, end, outputs)
        blocks = self._reuse_prefix(first_output)
        start = min(self._num_computed, first_output)
        if end - start > self._chunk_tokens and start < first_output:
            end, outputs = min(start + self._chunk_tokens, first_output), _Outputs(0)
        return self._forward_input(blocks, start, end, outputs)

    def _reuse_prefix(self, first_output: int) -> Sequence[BlockKey]:
        """Share cached KV of the tokens before `first_output`; return their keys if some have none yet."""
        wanted, computed = first_output // BLOCK_TOKENS, self._num_computed // BLOCK_TOKENS
        if wanted <= computed:
            return ()
        keys = self._chain.keys(self.tokens.ids, wanted)
        found = self._prefix_cache.reuse(self.slot, keys, computed)
        before = self._num_computed
        self._num_computed = max(before, found * BLOCK_TOKENS)
        self._num_reused += self._num_computed - before
        return keys if found < wanted else ()

    def _record_computed(self, end: int) -> None:
        """Record that all tokens before `end` have KV; share the blocks that will never be rolled back."""
        self._num_computed, self._num_reused = end, 0
        num_blocks = min(self.decided, end) // BLOCK_TOKENS
        if num_blocks > self._prefix_cache.num_published(self.slot):
            self._prefix_cache.publish(self.slot, self._chain.keys(self.tokens.ids, num_blocks))

    def _mark_changed(self, length: int) -> None:
        """Record that the tokens from position `length` on have changed, so their KV must be computed."""
        self._num_unchanged = min(self._num_unchanged, length)
        self._chain.truncate(length)

    def _forward_input(
        self, blocks: Sequence[BlockKey], start: int, end: int, outputs: _Outputs
    ) -> ForwardInput:
        ids = self.tokens.ids
        return ForwardInput(
            slot=self.slot,
            start=start,
            tokens=ids[start:end],
            num_outputs=outputs.number,
            sampling=self.opening.sampling,
            prompt_length=self.opening.prompt_length,
            history=ids,
            drafts=[*ids[end - outputs.number + 1 : end], -1] if outputs.number else (),
            entropy=None if outputs.without_entropies else self.opening.entropy,
            num_logprobs=self.opening.num_logprobs,
            with_gaps=self.opening.with_gaps and outputs.number > 1 and not outputs.is_proposing,
            num_reused=self._num_reused,
            blocks=blocks,
            num_shared=self.decided // BLOCK_TOKENS,
            proposals=outputs.proposals,
            is_proposing=outputs.is_proposing,
            grammar=self.grammar,
        )
