"""One sequence at a server: the token ids that it knows, and how far its KV reaches."""

from collections.abc import Generator, Sequence
from dataclasses import replace

from fly.errors import InvalidRequest
from fly.messages import Open, StaleReason
from fly.tokens import SequenceUpdate, TokenSequence
from fly.types import SparseDistribution
from services.engine.base import Job, Scores, Slot, StaleState, Work


class EngineSequence:
    """A server's side of the truth by position (DESIGN 3).

    Its state is the token ids that it knows; what of them has no KV is computed again when it is needed.
    Between `Engine.run` calls its owner may use it freely; during a run only the job may.

    Attributes:
        opening: What its stream was opened with.
        slot: Its place in KV memory.
        known: The token ids that it knows.
        decided: How many of them will never be rolled back.
    """

    def __init__(self, opening: Open, slot: Slot, vocab_size: int, context_length: int, chunk_tokens: int):
        self.opening = opening
        self.slot = slot
        self.known = TokenSequence()
        self.decided = 0
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._chunk_tokens = chunk_tokens
        self._num_computed = 0
        self._is_evicted = False

    def __len__(self) -> int:
        return len(self.known)

    @property
    def num_computed(self) -> int:
        """Tokens at the front whose KV is in memory."""
        return self._num_computed

    def apply(self, update: SequenceUpdate) -> None:
        """Truncates to `update.keep` and appends `update.tokens`; from `keep = 0` it replays.

        Raises:
            StaleState: The kept tokens are not known here; the sequence is unchanged.
            InvalidRequest: A field breaks a limit; the sequence is unchanged.
        """
        self._check_values(update)
        if update.keep == 0:
            self._replay(update)
            return
        self._check_kept(update)
        self.truncate(update.keep)
        self.known.extend(update.tokens)
        self.decided = update.decided

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens of the server's own: a drafter knows its draft."""
        self.known.extend(tokens)

    def truncate(self, length: int) -> None:
        """Forgets all tokens from position `length` on."""
        self.known.truncate(length)
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
        if not 1 <= num_outputs <= len(self.known):
            raise InvalidRequest.of("num_outputs", f"is {num_outputs}, must be 1 to {len(self.known)}")
        if len(self.known) > self._context_length:
            raise InvalidRequest.of(
                "tokens", f"are {len(self.known)}, the context holds {self._context_length}"
            )
        yield from self._prefill(len(self.known) - num_outputs)
        end = len(self.known)
        start = min(self._num_computed, end - num_outputs)
        work = self._work(start, end, num_outputs)
        scores = yield replace(work, proposals=proposals, is_proposing=is_proposing)
        self._num_computed = end
        return scores

    def _prefill(self, first_output: int) -> Generator[Work, Scores, None]:
        """Computes chunks until the rest fits into one, which answers."""
        while len(self.known) - self._num_computed > self._chunk_tokens and self._num_computed < first_output:
            end = min(self._num_computed + self._chunk_tokens, first_output)
            yield self._work(self._num_computed, end, 0)
            self._num_computed = end

    def _work(self, start: int, end: int, num_outputs: int) -> Work:
        ids = self.known.ids
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

    def _replay(self, update: SequenceUpdate) -> None:
        """Starts anew; KV of the common prefix is kept."""
        common = _common_length(self.known.ids, update.tokens)
        self._is_evicted = False
        self.truncate(common)
        self.known.extend(update.tokens[common:])
        self.decided = update.decided

    def _check_values(self, update: SequenceUpdate) -> None:
        for index, token in enumerate(update.tokens):
            if not 0 <= token < self._vocab_size:
                raise InvalidRequest.of(
                    f"update.tokens[{index}]", f"is {token}, must be 0 to {self._vocab_size - 1}"
                )
        length = update.keep + len(update.tokens)
        if update.keep < 0:
            raise InvalidRequest.of("update.keep", f"is {update.keep}, must be at least 0")
        if length > self._context_length:
            raise InvalidRequest.of(
                "update.tokens", f"make {length} tokens, the context holds {self._context_length}"
            )
        if not 0 <= update.decided <= length:
            raise InvalidRequest.of("update.decided", f"is {update.decided}, must be 0 to {length}")

    def _check_kept(self, update: SequenceUpdate) -> None:
        if self._is_evicted:
            raise StaleState(StaleReason.EVICTED)
        if update.keep > len(self.known):
            raise StaleState(StaleReason.BEYOND_STATE)
        if self.known.prefix_hash(update.keep) != update.prefix_hash:
            raise StaleState(StaleReason.WRONG_HASH)
        if update.keep < self.decided:
            raise InvalidRequest.of("update.keep", f"is {update.keep}, must be 0 or at least {self.decided}")
        if update.decided < self.decided:
            raise InvalidRequest.of("update.decided", f"is {update.decided}, must be at least {self.decided}")


def _common_length(known: Sequence[int], tokens: Sequence[int]) -> int:
    for length, (left, right) in enumerate(zip(known, tokens, strict=False)):
        if left != right:
            return length
    return min(len(known), len(tokens))
