"""A whole system on loopback: fake targets and drafters, a router, a client."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from flyserve.v1.generation_pb2_grpc import GenerationStub
from router.config import RouterConfig
from router.server import create_host
from tests.contract.fakes import FakeDrafter, FakeService, FakeTarget
from tests.support.serving import connected, serving

PLAIN, EXACT, FLY = pb.MODE_PLAIN, pb.MODE_EXACT, pb.MODE_FLY
PROMPT = [40, 41, 42, 43]


class Rig:
    """A client of a running router.

    Attributes:
        addresses: Where it listens: gRPC, then HTTP if it has a port.
    """

    def __init__(self, channel: grpc.aio.Channel, addresses: Sequence[str] = ()) -> None:
        self.channel = channel
        self.addresses = addresses
        self.stub = GenerationStub(channel)

    async def generate(self, mode: int, max_new_tokens: int = 60, **fields: Any) -> "Answer":
        """Return the first choice, with the fields of the response."""
        (choice, *_), response = await self.choices(mode, max_new_tokens, **fields)
        return Answer(choice, response)

    async def choices(
        self, mode: int, max_new_tokens: int = 60, **fields: Any
    ) -> tuple[list[pb.Choice], pb.GenerateResponse]:
        response = await self.stub.Generate(make_request(mode, max_new_tokens, **fields), timeout=240)
        return list(response.choices), response

    async def expired(self, request: pb.GenerateRequest, *services: FakeService) -> float:
        """Send a request whose deadline passes while one of the services works; return its seconds.

        On a slow machine, where no service is reached in time, the deadline is later.
        """
        timeout_s, num_opened = 0.25, sum(each.num_opened for each in services)
        while sum(each.num_opened for each in services) == num_opened:
            timeout_s *= 2
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await self.stub.Generate(request, timeout=timeout_s)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        opened = [each for each in services if each.num_opened]
        await asyncio.wait_for(asyncio.gather(*(each.all_closed.wait() for each in opened)), 60)
        return timeout_s

    async def stream(self, mode: int, max_new_tokens: int = 60, **fields: Any) -> list[pb.GenerateChunk]:
        """Return the chunks of a response."""
        call = self.stub.GenerateStream(make_request(mode, max_new_tokens, **fields), timeout=240)
        return [chunk async for chunk in call]

    async def meets_a_drafter(self) -> None:
        """Return when the router has met a drafter: on a busy machine its first handshake may fail."""
        async with asyncio.timeout(240):
            while not (await self.stub.Info(common_pb2.InfoRequest())).HasField("drafter"):
                await asyncio.sleep(0.01)

    async def misses_drafters(self) -> None:
        """Return when the router has noticed that no drafter is left."""
        async with asyncio.timeout(240):
            while (await self.stub.Info(common_pb2.InfoRequest())).HasField("drafter"):
                await asyncio.sleep(0.01)

    async def rejection(self, **fields: Any) -> grpc.aio.AioRpcError:
        """Return the error of a request with no other fields than these."""
        return await self.error_of(pb.GenerateRequest(**fields))

    async def error_of(self, request: pb.GenerateRequest) -> grpc.aio.AioRpcError:
        """Return the error of a request."""
        try:
            await self.stub.Generate(request, timeout=240)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("the request was not rejected")


class Answer:
    """A response of one choice."""

    def __init__(self, choice: pb.Choice, response: pb.GenerateResponse) -> None:
        self.text = choice.text
        self.tokens = choice.tokens
        self.finish_reason = choice.finish_reason
        self.statistics = choice.statistics
        self.rounds = choice.rounds
        self.request_id = response.request_id
        self.prompt_tokens = response.prompt_tokens
        self.warnings = response.warnings


def make_request(mode: int, max_new_tokens: int = 60, **fields: Any) -> pb.GenerateRequest:
    speculation = pb.SpeculationParams(mode=mode, **fields.pop("speculation", {}))
    fields.setdefault("prompt_token_ids", pb.TokenIds(ids=PROMPT))
    return pb.GenerateRequest(max_new_tokens=max_new_tokens, speculation=speculation, **fields)


def ids(response: Answer | pb.Choice | pb.GenerateChunk) -> list[int]:
    return [token.id for token in response.tokens]


def joined(chunks: Iterable[pb.GenerateChunk]) -> list[int]:
    """Return the tokens of a stream."""
    return [token.id for chunk in chunks for token in chunk.tokens]


def assert_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Check that no replica was taken out of use."""
    assert not [r for r in caplog.records if r.name.endswith("directory") and "failed" in r.getMessage()]


@asynccontextmanager
async def running(
    model: Path, targets: Sequence[FakeTarget], drafters: Sequence[FakeDrafter] = (), **config: Any
) -> AsyncIterator[Rig]:
    """Serve everything until the block ends.

    Unless configured otherwise, rounds wait for every draft, and each has one token if it has no draft: so
    the number of steps does not depend on time.
    """
    config.setdefault("draft_patience", 1e6)
    config.setdefault("stream_interval_s", 0.0)
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(fake.host)) for fake in (*targets, *drafters)]
        made = RouterConfig(
            model=model,
            grpc_port=0,
            targets=tuple(addresses[: len(targets)]),
            drafters=tuple(addresses[len(targets) :]),
            **config,
        )
        host = await create_host(made)
        channel = await stack.enter_async_context(connected(host))
        rig = Rig(channel, host.addresses)
        if drafters and "security" not in config:
            await rig.meets_a_drafter()
        yield rig
