"""Exact streams in a closed loop, each response held against the undisturbed one of its prompt."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fly.errors import FlyServeError
from fly.response import Response
from flyserve import AsyncClient, Mode, SpeculationParams
from flyserve.options import Prompt

EXACT = SpeculationParams(mode=Mode.EXACT)


class Streams:
    """One stream per prompt at a time.

    Attributes:
        expected: Token ids of the undisturbed responses, prompt by prompt.
        different: (number of the prompt, token ids) of every response that is not the expected one.
        failures: Why streams failed.
        num_answered: Whole responses of the closed loop.
        num_replays: Times that a sequence was replayed to a replica, over all of them.
        num_resumed: Times that another router went on with a stream, over all of them.
    """

    def __init__(
        self, addresses: Sequence[str], prompts: Sequence[Prompt], new_tokens: int, retries: int = 3
    ) -> None:
        """Asks nothing yet.

        Args:
            addresses: Of the routers; the streams begin at one after the other.
            prompts: One per stream.
            new_tokens: Of each response, at most.
            retries: Of a client in a row; three is what everybody has.
        """
        self.expected: list[tuple[int, ...]] = []
        self.different: list[tuple[int, tuple[int, ...]]] = []
        self.failures: list[str] = []
        self.num_answered = self.num_replays = self.num_resumed = 0
        self._addresses, self._prompts = addresses, prompts
        self._new_tokens, self._retries = new_tokens, retries

    async def ask_undisturbed(self) -> None:
        """Learns what every response is to be."""
        async with AsyncClient(self._addresses) as client:
            responses = await asyncio.gather(*(self._ask(client, prompt) for prompt in self._prompts))
        self.expected = [ids(response) for response in responses]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Asks again and again during the block; when it ends, the last responses are there."""
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
                    self._note(number, await self._ask(client, self._prompts[number]))
                except FlyServeError as error:
                    self.failures.append(f"stream {number}: {type(error).__name__}: {error}")

    async def _ask(self, client: AsyncClient, prompt: Prompt) -> Response:
        stream = client.stream(prompt, self._new_tokens, speculation=EXACT)
        async for _ in stream:
            pass
        return stream.response

    def _note(self, number: int, response: Response) -> None:
        self.num_answered += 1
        self.num_replays += response.statistics.replays
        self.num_resumed += response.resumed
        if ids(response) != self.expected[number]:
            self.different.append((number, ids(response)))


def ids(response: Response) -> tuple[int, ...]:
    return tuple(token.id for token in response.tokens)
