"""Clients of every kind: those that wait, leave, stall or err, and those whose process is killed."""

import asyncio
import contextlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.synchronize import Event

import httpx2

from benchmarks.scenarios.soak.requests import BAD, EXACT, FLY, LONG, PLAIN, Plan, Request, Requests
from flyserve import AsyncClient, Response
from flyserve.async_client import AsyncStream
from flyserve.core.errors import DeadlineExceeded, FlyServeError, InvalidRequest, Overloaded

_TIMEOUT_S, _START_TIMEOUT_S = 60.0, 300.0
_REQUESTS_PER_CONNECTION = 20
_KEPT_FAULTS = 20
_STALLS = "stalls"


async def complete(url: str, request: Request, close_after: int | None = None) -> bool:
    """Send a request over a connection of its own; return True if the whole response arrived.

    Args:
        url: URL of the router's HTTP API.
        request: Its prompt, length, mode and options are sent.
        close_after: Events of the stream after which the connection is closed; None reads to the end.
    """
    body = {
        "model": "target",
        "prompt": list(request.prompt),
        "max_tokens": request.max_new_tokens,
        "temperature": request.sampling.temperature,
        "speculation": {"mode": request.speculation.mode, "preset": request.speculation.preset},
        "stream": True,
        **request.options,
    }
    num_events = 0
    try:
        async with (
            httpx2.AsyncClient(timeout=_TIMEOUT_S) as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            if response.is_client_error:
                raise InvalidRequest.of("request", f"was answered with status {response.status_code}")
            async for line in response.raise_for_status().aiter_lines():
                if line.startswith("data: [DONE]"):
                    return True
                num_events += line.startswith("data: ")
                if num_events == close_after:
                    return False
    except httpx2.HTTPError as error:
        raise FlyServeError(f"the HTTP request failed: {error}") from None
    raise FlyServeError("the stream ended before the response did")


class Clients:
    """Many concurrent clients.

    Attributes:
        outcomes: Number of requests by the client's behaviour and the outcome.
        faults: The first errors that must not happen.
    """

    def __init__(self, addresses: Sequence[str], plan: Plan) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []
        self._address, self._url = addresses
        self._plan = plan
        self._requests = Requests(plan.seed)
        self._responses: dict[str, tuple[int, ...]] = {}

    async def send_for(self, seconds: float) -> None:
        """Send requests until the time is over; return when the last one has ended."""
        end_s = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.clients):
                group.create_task(self._client(end_s))
            group.create_task(self._vanish(end_s))

    def outcomes_by_behaviour(self) -> dict[str, dict[str, int]]:
        """Return the outcomes by the client's behaviour."""
        found: dict[str, dict[str, int]] = {}
        for (behaviour, outcome), number in sorted(self.outcomes.items()):
            found.setdefault(behaviour, {})[outcome] = number
        return found

    async def _client(self, end_s: float) -> None:
        while time.monotonic() < end_s:
            async with AsyncClient(self._address) as client:
                for _ in range(_REQUESTS_PER_CONNECTION):
                    if time.monotonic() >= end_s:
                        break
                    await self._send(client)
                    await asyncio.sleep(self._requests.uniform(0.0, self._plan.think_s))

    async def _send(self, client: AsyncClient) -> None:
        behaviour = self._requests.choose(_WEIGHTS)
        request = LONG if behaviour == _STALLS else self._requests.draw()
        name = f"{behaviour}, {request.kind}" if request.kind == BAD else behaviour
        try:
            outcome = await _ACTS[behaviour](self, client, request)
        except InvalidRequest as rejection:
            outcome = "rejected" if request.kind == BAD else self._fault("failed", rejection)
        except (DeadlineExceeded, Overloaded) as late:
            # NOTE: a router that is busy rejects what cannot end in time.
            outcome = "late" if behaviour == "hurries" else self._fault("failed", late)
        except (FlyServeError, OSError) as error:
            outcome = self._fault("failed", error)
        self.outcomes[name, outcome] += 1

    async def _wait(self, client: AsyncClient, request: Request) -> str:
        response = await client.generate(
            request.prompt, request.max_new_tokens, request.sampling, request.speculation, **request.options
        )
        return self._check(request, response)

    async def _read(
        self, client: AsyncClient, request: Request, rest_s: float = 0.0, timeout_s: float | None = None
    ) -> str:
        """Read all; pause for `rest_s` seconds in total, a tenth of it after every chunk."""
        stream, pause_s = _stream(client, request, timeout_s), rest_s / 10
        async for _ in stream:
            if rest_s > 0:
                await asyncio.sleep(pause_s)
                rest_s -= pause_s
        return self._check(request, stream.response)

    async def _dawdle(self, client: AsyncClient, request: Request) -> str:
        return await self._read(client, request, rest_s=self._requests.uniform(0.5, 8.0))

    async def _hurry(self, client: AsyncClient, request: Request) -> str:
        return await self._read(client, request, timeout_s=self._requests.uniform(0.02, 1.0))

    async def _leave(self, client: AsyncClient, request: Request) -> str:
        """Cancel after some chunks, or before the first."""
        chunks_left = int(self._requests.uniform(0, 12))
        async with contextlib.aclosing(_stream(client, request)) as stream:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._requests.uniform(0.01, 2.0)):
                    async for _ in stream:
                        chunks_left -= 1
                        if chunks_left <= 0:
                            return "left"
                    return self._check(request, stream.response)
        return "left"

    async def _stall(self, client: AsyncClient, request: Request) -> str:
        """Read nothing for longer than the router waits."""
        async with contextlib.aclosing(_stream(client, request)) as stream:
            await anext(stream)
            await asyncio.sleep(2.0 * self._plan.write_timeout_s)
        return "left"

    async def _browse(self, client: AsyncClient, request: Request) -> str:
        """Send over HTTP; half of these clients close the connection in the middle."""
        stays = self._requests.uniform(0.0, 1.0) < 0.5
        is_whole = await complete(self._url, request, None if stays else 3)
        return "done" if is_whole else "left"

    async def _vanish(self, end_s: float) -> None:
        """Kill a process with open streams periodically: its connection ends without a message."""
        spawn = multiprocessing.get_context("spawn")
        while time.monotonic() + self._plan.vanish_s < end_s:
            are_open = spawn.Event()
            process = spawn.Process(target=_open_streams, args=(self._address, are_open), daemon=True)
            process.start()
            has_opened = await asyncio.to_thread(are_open.wait, _START_TIMEOUT_S)
            process.kill()
            await asyncio.to_thread(process.join)
            if not has_opened:
                self._fault("failed", FlyServeError("the process to be killed opened no streams"))
            self.outcomes["vanishes", "left" if has_opened else "failed"] += 1
            await asyncio.sleep(self._plan.vanish_s)

    def _check(self, request: Request, response: Response) -> str:
        """Compare a response with all others to the same topic, as far as both go."""
        if request.kind == BAD:
            return self._fault("wrong", FlyServeError(f"{request.options} was accepted"))
        if not request.topic:
            return "done"
        ids = tuple(token.id for token in response.tokens)
        longest = self._responses.get(request.topic, ())
        shorter = min(len(ids), len(longest))
        if ids[:shorter] != longest[:shorter]:
            return self._fault("wrong", FlyServeError(f"{request.topic} has two different responses"))
        if len(ids) > len(longest):
            self._responses[request.topic] = ids
        return "done"

    def _fault(self, outcome: str, error: Exception) -> str:
        if len(self.faults) < _KEPT_FAULTS:
            self.faults.append(f"{type(error).__name__}: {error}")
        return outcome


def _stream(client: AsyncClient, request: Request, timeout_s: float | None = None) -> AsyncStream:
    return client.stream(
        request.prompt,
        request.max_new_tokens,
        request.sampling,
        request.speculation,
        timeout_s=timeout_s,
        **request.options,
    )


def _open_streams(address: str, are_open: Event) -> None:
    """Open streams in every mode, set the event once all have begun, and read on until killed."""

    async def read() -> None:
        async with AsyncClient(address, retries=0) as client:
            streams = [
                _stream(client, replace(LONG, speculation=way, options={})) for way in (PLAIN, EXACT, FLY)
            ]
            await asyncio.gather(*(anext(stream) for stream in streams))
            are_open.set()
            for stream in streams:
                async for _ in stream:
                    pass

    asyncio.run(read())


_Act = Callable[[Clients, AsyncClient, Request], Awaitable[str]]
_BEHAVIOURS: Mapping[str, tuple[int, _Act]] = {
    "reads": (40, Clients._read),
    "waits for all": (15, Clients._wait),
    "leaves": (20, Clients._leave),
    "hurries": (8, Clients._hurry),
    "dawdles": (5, Clients._dawdle),
    _STALLS: (2, Clients._stall),
    "browses": (10, Clients._browse),
}
"""The behaviours of clients, each with its relative frequency."""
_WEIGHTS = {name: weight for name, (weight, _) in _BEHAVIOURS.items()}
_ACTS = {name: act for name, (_, act) in _BEHAVIOURS.items()}
