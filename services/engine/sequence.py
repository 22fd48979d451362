"""One sequence at a server: the token ids that it knows, and how far its KV reaches."""

from collections.abc import Generator, Sequence
from dataclasses import replace

from fly.errors import InvalidRequest
from fly.known import KnownSequence, StaleState
from fly.messages import Open, StaleReason
from fly.tokens import SequenceUpdate
from fly.types import SparseDistribution
from services.engine.base import Job, Scores, Slot, Work


class EngineSequence(KnownSequence):
    """A server's side of the truth by position, with KV memory.

    Its state is the token ids that it knows; what of them has no KV is computed again when it is needed.
    Between `Engine.run` calls its owner may use it freely; during a run only the job may.

    Attributes:
        opening: What its stream was opened with.
        slot: Its place in KV memory.
    """

    def __init__(self, opening: Open, slot: Slot, vocab_size: int, context_length: int, chunk_tokens: int):
        super().__init__(vocab_size, context_length)
        self.opening = opening
        self.slot = slot
        self._chunk_tokens = chunk_tokens
        self._num_computed = 0
        self._is_evicted = False

    @property
    def num_computed(self) -> int:
        """Tokens at the front whose KV is in memory."""
        return self._num_computed

    def apply(self, update: SequenceUpdate) -> int:
        """As `KnownSequence.apply`; a replay from `keep = 0` mends an eviction."""
        if self._is_evicted and update.keep > 0:
            raise StaleState(StaleReason.EVICTED)
        unchanged = super().apply(update)
        self._is_evicted = False
        self._num_computed = min(self._num_computed, unchanged)
        return unchanged

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens of the server's own: a drafter knows its draft."""
        self.tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Forgets all tokens from position `length` on."""
        self.tokens.truncate(length)
        self._num_computed = min(self._num_computed, length)

    def evict(self) -> None:
        """Its KV memory has been taken away; its next step is stale."""
        self._num_computed = 0
        self._is_evicted = True

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
        if self._is_evicted:
            raise StaleState(StaleReason.EVICTED)
        if not 1 <= num_outputs <= len(self.tokens):
            raise InvalidRequest.of("num_outputs", f"is {num_outputs}, must be 1 to {len(self.tokens)}")
        if len(self.tokens) > self._context_length:
            raise InvalidRequest.of(
                "tokens", f"are {len(self.tokens)}, the context holds {self._context_length}"
            )
        yield from self._prefill(len(self.tokens) - num_outputs)
        end = len(self.tokens)
        start = min(self._num_computed, end - num_outputs)
        work = self._work(start, end, num_outputs)
        scores = yield replace(work, proposals=proposals, is_proposing=is_proposing)
        self._num_computed = end
        return scores

    def _prefill(self, first_output: int) -> Generator[Work, Scores, None]:
        """Computes chunks until the rest fits into one, which answers."""
        while (
            len(self.tokens) - self._num_computed > self._chunk_tokens and self._num_computed < first_output
        ):
            end = min(self._num_computed + self._chunk_tokens, first_output)
            yield self._work(self._num_computed, end, 0)
            self._num_computed = end

    def _work(self, start: int, end: int, num_outputs: int) -> Work:
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
        )
