"""One sequence on vLLM: its tokens, and requests for the scores of its end or for more tokens."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from fly.messages import ModelInfo, Open, StepTimes
from fly.sequence import ReplicatedSequence, SequenceUpdate
from services.engine.vllm.client import VllmClient
from services.engine.vllm.requests import TokenAnswer, TokenRequest
from services.engine.vllm.rows import Rows
from services.engine.vllm.run import DecodingRun

_LONG_TOKENS = 256
"""New tokens before the scored ones from which on they are computed first, without scores: vLLM computes the
logits of every new row of a scoring request."""
_LARGEST_BLOCK = 64
"""Tokens of the largest usual block of KV memory."""


@dataclass(slots=True)
class Counts:
    """Counters of an engine, over all its sequences.

    Attributes:
        prefill_tokens: Tokens computed without a result.
        reused_tokens: Tokens whose KV another sequence had computed.
    """

    prefill_tokens: int = 0
    reused_tokens: int = 0


class VllmSequence(ReplicatedSequence):
    """A server's copy of a client's sequence; vLLM's prefix cache holds the KV of its tokens.

    Attributes:
        opening: The parameters that its stream was opened with.
        times: Times and work since `apply`.
    """

    def __init__(self, opening: Open, info: ModelInfo, client: VllmClient, counts: Counts) -> None:
        super().__init__(info.vocab_size, info.context_length)
        self.opening = opening
        self.times = StepTimes()
        self._client = client
        self._counts = counts
        self._num_computed = 0
        self._context_length = info.context_length

    def apply(self, update: SequenceUpdate) -> int:
        unchanged = super().apply(update)
        self._num_computed = min(self._num_computed, unchanged)
        self.times = StepTimes()
        return unchanged

    @property
    def num_free(self) -> int:
        """Tokens that may be decoded after its end; the last of them needs no place in the context."""
        return self._context_length + 1 - len(self.tokens)

    def extend(self, tokens: Collection[int]) -> None:
        """Append tokens that the server chose itself; the last one was never computed."""
        self.tokens.extend(tokens)
        self._num_computed = min(self._num_computed, len(self.tokens) - 1)

    def truncate(self, length: int) -> None:
        """Drop all tokens from position `length` on."""
        self.tokens.truncate(length)
        self._num_computed = min(self._num_computed, length)

    def run(self, max_tokens: int, part_tokens: int, num_candidates: int | None) -> DecodingRun:
        """Let vLLM decode after its end, at most `max_tokens` tokens, and send `part_tokens` at a time."""
        request = self._request(
            self.tokens.ids,
            num_candidates,
            max_tokens=max_tokens,
            ending_ids=self.opening.sampling.ending_ids,
        )
        return DecodingRun(self._client, replace(request, part_tokens=part_tokens))

    async def take(self, run: DecodingRun, count: int) -> tuple[tuple[int, ...], Rows | None]:
        """Return the next tokens of a run after its end, and their rows if it has any."""
        tokens, rows, spent_ns = await run.take(count)
        self._num_computed = len(self.tokens) + len(tokens)
        self.times = StepTimes(forward_ns=spent_ns, batch_size=1, batch_tokens=1)
        return tokens, rows

    async def score(self, num_drafts: int, num_candidates: int) -> TokenAnswer:
        """Score the last `num_drafts + 1` positions."""
        first_row = len(self.tokens) - 1 - num_drafts
        if num_drafts and first_row - self._num_computed >= _LONG_TOKENS:
            await self._answer(self._request(self.tokens.ids[:first_row], None), num_outputs=0)
        request = self._request(self.tokens.ids, num_candidates, num_rows=num_drafts)
        return await self._answer(request, num_outputs=num_drafts + 1)

    async def decode(
        self, max_tokens: int, num_candidates: int | None, ending_ids: Collection[int]
    ) -> TokenAnswer:
        """Let vLLM decode up to `max_tokens` tokens after its end; the sequence is left as it is."""
        request = self._request(self.tokens.ids, num_candidates, max_tokens=max_tokens, ending_ids=ending_ids)
        return await self._answer(request, num_outputs=1)

    def _request(
        self,
        tokens: list[int],
        num_candidates: int | None,
        num_rows: int = 0,
        max_tokens: int = 1,
        ending_ids: Collection[int] = (),
    ) -> TokenRequest:
        return TokenRequest(
            tokens=tokens,
            num_candidates=num_candidates,
            num_rows=num_rows,
            max_tokens=max_tokens,
            ending_ids=ending_ids,
            cache_salt=self.opening.cache_salt,
            priority=self.opening.priority,
            name=self.opening.request_id,
        )

    async def _answer(self, request: TokenRequest, num_outputs: int) -> TokenAnswer:
        """Ask vLLM, and count the work: all but `num_outputs` of the computed tokens were prefill."""
        answer = await self._client.answer(request)
        rows = len(request.tokens) - answer.num_cached
        # The cache holds whole blocks: what is computed again of the last one is no prefill.
        again = max(0, self._num_computed - answer.num_cached)
        prefill = max(0, rows - num_outputs - (again if again < _LARGEST_BLOCK else 0))
        reused = max(0, answer.num_cached - self._num_computed)
        self._counts.prefill_tokens += prefill
        self._counts.reused_tokens += reused
        self._num_computed = len(request.tokens) + len(answer.tokens) - 1
        self.times = StepTimes(
            queue_ns=self.times.queue_ns + answer.times.queue_ns,
            forward_ns=self.times.forward_ns + answer.times.forward_ns,
            batch_size=max(self.times.batch_size, answer.times.batch_size),
            batch_tokens=max(self.times.batch_tokens, rows),
            prefill_tokens=self.times.prefill_tokens + prefill,
            reused_tokens=self.times.reused_tokens + reused,
        )
        return answer
