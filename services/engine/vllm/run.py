"""A run of vLLM's own decoding that goes on between the steps of a client."""

import asyncio
import time

from services.engine.vllm.client import VllmClient
from services.engine.vllm.requests import TokenAnswer, TokenRequest
from services.engine.vllm.rows import Rows


class DecodingRun:
    """Tokens that vLLM decodes after a sequence, taken in parts.

    A request of its own for every few tokens would keep vLLM from decoding at its full speed.
    """

    def __init__(self, client: VllmClient, request: TokenRequest) -> None:
        """Start decoding; `request` must return parts."""
        self._tokens: list[int] = []
        self._rows: list[Rows] = []
        self._has_rows = request.num_candidates is not None
        self._ready_ns = [time.perf_counter_ns()]
        self._num_taken = 0
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._decode(client, request))

    @property
    def is_spent(self) -> bool:
        """True if it has ended and all of its tokens were taken."""
        return self._task.done() and self._num_taken == len(self._tokens)

    async def take(self, count: int) -> tuple[tuple[int, ...], Rows | None, int]:
        """Return the next tokens, their rows if wanted, and the nanoseconds of decoding; fewer at the end.

        Raises:
            NotReady: The engine has ended before the first of them.
            InternalError: vLLM failed on the sequence before the first of them, or the run was spent.
        """
        first, last = self._num_taken, self._num_taken + count
        while len(self._tokens) < last and not self._task.done():
            self._changed.clear()
            await self._changed.wait()
        if len(self._tokens) == first:
            self._task.result()
        last = min(last, len(self._tokens))
        self._num_taken = last
        spent_ns = self._ready_ns[last] - self._ready_ns[first]
        rows = Rows.joined(self._rows[first:last]) if self._has_rows else None
        return tuple(self._tokens[first:last]), rows, spent_ns

    async def close(self) -> None:
        """End the run; its further tokens are lost."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _decode(self, client: VllmClient, request: TokenRequest) -> None:
        try:
            async for answer in client.stream(request):
                self._add(answer)
        finally:
            # NOTE: the task counts as done only after this, so that the waiting step looks once more.
            asyncio.get_running_loop().call_soon(self._changed.set)

    def _add(self, answer: TokenAnswer) -> None:
        first_ns, count = self._ready_ns[-1], len(answer.tokens)
        now_ns = time.perf_counter_ns()
        self._tokens += answer.tokens
        # A part arrives with its last token; the others were decoded since the part before.
        self._ready_ns += [first_ns + (now_ns - first_ns) * number // count for number in range(1, count + 1)]
        if answer.rows is not None:
            self._rows += [answer.rows.part(index, index + 1) for index in range(count)]
        self._changed.set()
