"""Exact streams in a closed loop; each response is compared with the undisturbed one of its prompt."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from flyserve import AsyncClient, Mode, SpeculationParams
from flyserve.core.errors import FlyServeError
from flyserve.core.response import Response
from flyserve.requests import Prompt

EXACT = SpeculationParams(mode=Mode.EXACT)


class Streams:
    """One stream per prompt at a time.

    Attributes:
        expected: Token ids of the undisturbed responses, prompt by prompt.
        different: (number of the prompt, token ids) of every response that is not the expected one.
        failures: Errors of failed streams.
        num_answered: Complete responses of the closed loop.
        num_replays: Replays of sequences to replicas, summed over the responses.
        num_resumed: Resumptions of streams at another router, summed over the responses.
    """

    def __init__(
        self, addresses: Sequence[str], prompts: Sequence[Prompt], new_tokens: int, retries: int = 3
    ) -> None:
        """Send nothing yet.

        Args:
            addresses: Addresses of the routers; the streams start at them in turn.
            prompts: One prompt per stream.
            new_tokens: Maximum of tokens per response.
            retries: Consecutive retries of a client; the default is the client's.
        """
        self.expected: list[tuple[int, ...]] = []
        self.different: list[tuple[int, tuple[int, ...]]] = []
        self.failures: list[str] = []
        self.num_answered = self.num_replays = self.num_resumed = 0
        self._addresses, self._prompts = addresses, prompts
        self._new_tokens, self._retries = new_tokens, retries

    async def record_undisturbed(self) -> None:
        """Record the expected response of every prompt."""
        async with AsyncClient(self._addresses) as client:
            responses = await asyncio.gather(*(self._generate(client, prompt) for prompt in self._prompts))
        self.expected = [ids(response) for response in responses]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Repeat the requests during the block; wait for the last responses at its end."""
        is_over = asyncio.Event()
        loops = [asyncio.create_task(self._loop(number, is_over)) for number in range(len(self._prompts))]
        try:
            yield
        finally:
            is_over.set()
            await asyncio.gather(*loops)

    async def _loop(self, number: int, is_over: asyncio.Event) -> None:
        first = number % len(self._addresses)
        addresses = (*self._addresses[first:], *self._addresses[:first])
        async with AsyncClient(addresses, retries=self._retries) as client:
            while not is_over.is_set():
                try:
                    self._record(number, await self._generate(client, self._prompts[number]))
                except FlyServeError as error:
                    self.failures.append(f"stream {number}: {type(error).__name__}: {error}")

    async def _generate(self, client: AsyncClient, prompt: Prompt) -> Response:
        stream = client.stream(prompt, self._new_tokens, speculation=EXACT)
        async for _ in stream:
            pass
        return stream.response

    def _record(self, number: int, response: Response) -> None:
        self.num_answered += 1
        self.num_replays += response.statistics.replays
        self.num_resumed += response.resumed
        if ids(response) != self.expected[number]:
            self.different.append((number, ids(response)))


def ids(response: Response) -> tuple[int, ...]:
    return tuple(token.id for token in response.tokens)
