"""A client whose stream is cut anywhere gets the same response in the end, or an error that says why not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve import (
    AsyncClient,
    Coupling,
    DraftLength,
    Mode,
    Response,
    SamplingParams,
    SpeculationParams,
    StreamBroken,
)
from flyserve.v1 import generation_pb2 as pb
from flyserve.v1.generation_pb2_grpc import (
    GenerationServicer,
    GenerationStub,
    add_GenerationServicer_to_server,
)
from router.config import RouterConfig
from router.server import create_host
from services.common.channel import open_channel
from services.common.host import Host
from tests.contract.fakes import VOCAB_SIZE, FakeTarget, HashModel, closed, save_tokenizer
from tests.contract.system_rig import INSTANT, whole_system
from tests.support.serving import serving

LANGUAGE = {**INSTANT, "vocab_size": VOCAB_SIZE, "uncertain_share": 0.9, "response_tokens": [20, 24]}
PROMPT = "the quick brown fox"
LENGTH = 24
PLAIN, EXACT, FLY = (
    SpeculationParams(mode=mode, draft_length=DraftLength(max=4))
    for mode in (Mode.PLAIN, Mode.EXACT, Mode.FLY)
)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95)


class Cutter(GenerationServicer):
    """Forward a router's streams, and cut each one after a number of chunks."""

    def __init__(self, stub: Any) -> None:
        self.cut_after = 10_000
        self.requests: list[pb.GenerateRequest] = []
        self.strip_origin = False
        self._stub = stub

    async def GenerateStream(self, request: pb.GenerateRequest, context: Any) -> None:
        self.requests.append(request)
        left = self.cut_after
        async for chunk in self._stub.GenerateStream(request):
            if not left:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            left -= 1
            if self.strip_origin:
                chunk.ClearField("origin")
            await context.write(chunk)


@dataclass(frozen=True)
class Rig:
    cutter: Cutter
    cut: str
    router: str

    async def undisturbed(self, *arguments: Any, **options: Any) -> Response:
        return await self.streamed((self.router,), *arguments, **options)

    async def streamed(
        self,
        addresses: tuple[str, ...],
        speculation: SpeculationParams,
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> Response:
        async with AsyncClient(addresses) as client:
            stream = client.stream(PROMPT, LENGTH, sampling, speculation, timeout_s=20, **options)
            chunks = [chunk async for chunk in stream]
            response = stream.response
            assert sum(bool(chunk.request_id) for chunk in chunks) == 1 and chunks[0].prompt_tokens
            assert "".join(c.text for c in chunks if not c.choice_index) == response.text
            return response


@pytest.fixture
async def rig(model: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        sections = {
            "target": {"simulated": LANGUAGE},
            "drafter": {"simulated": {**LANGUAGE, "agreement": 0.7}},
            "router": {"stream_interval_s": 0.0},
        }
        router = (await stack.enter_async_context(whole_system(model, **sections)))["router"].address
        stub = GenerationStub(await stack.enter_async_context(open_channel(router)))
        cutter, server = Cutter(stub), grpc.aio.server()
        add_GenerationServicer_to_server(cutter, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stack.push_async_callback(server.stop, None)
        yield Rig(cutter, f"127.0.0.1:{port}", router)


def outcome(response: Response) -> Any:
    """All that must not depend on where a stream was cut."""
    return [
        (
            choice.text,
            [(token.id, token.text, token.logprobs) for token in choice.tokens],
            choice.finish_reason,
        )
        for choice in response.choices
    ]


CASES = [
    (PLAIN, SamplingParams(), {}),
    (EXACT, SamplingParams(), {"logprobs": 2}),
    (EXACT, replace(SAMPLED, seed=5, min_tokens=22), {}),
    (PLAIN, replace(SAMPLED, seed=6, coupling=Coupling.REJECTION), {}),
    (EXACT, replace(SAMPLED, seed=7), {"n": 3}),
]


@pytest.mark.parametrize(("speculation", "sampling", "options"), CASES)
async def test_a_stream_cut_anywhere_gives_the_undisturbed_response(
    rig: Rig, speculation: SpeculationParams, sampling: SamplingParams, options: dict[str, Any]
) -> None:
    expected = await rig.undisturbed(speculation, sampling, **options)
    assert expected.resumed == 0
    for cut_after in range(0, LENGTH, options.get("n", 1)):
        rig.cutter.cut_after = cut_after
        response = await rig.streamed((rig.cut, rig.router), speculation, sampling, **options)
        assert outcome(response) == outcome(expected)
        assert response.resumed <= 1 and (response.resumed or not cut_after or cut_after > 4)


async def test_a_stream_cut_after_every_chunk_gives_the_undisturbed_response(rig: Rig) -> None:
    text = (await rig.undisturbed(PLAIN)).text
    stop = (text[len(text) // 2 :][:3], "never")
    expected = await rig.undisturbed(PLAIN, stop=stop)
    rig.cutter.cut_after = 1
    response = await rig.streamed((rig.cut, rig.cut), PLAIN, stop=stop)
    assert outcome(response) == outcome(expected)
    assert response.resumed >= 8
    received = [choice.kernels for request in rig.cutter.requests for choice in request.resume.choices]
    assert len(received) >= 8 and set(received) == {"simulated"}


async def test_a_drawn_seed_is_kept(rig: Rig) -> None:
    rig.cutter.cut_after = 3
    response = await rig.streamed((rig.cut, rig.router), EXACT, SAMPLED)
    again = await rig.undisturbed(EXACT, replace(SAMPLED, seed=response.statistics.seed))
    assert response.resumed == 1 and outcome(response) == outcome(again)


@pytest.mark.parametrize(
    ("speculation", "sampling", "why"),
    [
        (FLY, SamplingParams(), "mode fly"),
        (SpeculationParams(), SamplingParams(), "mode fly"),
        (EXACT, replace(SAMPLED, coupling=Coupling.REJECTION), "coupling rejection"),
    ],
)
async def test_what_cannot_be_had_again_says_why_and_keeps_what_came(
    rig: Rig, speculation: SpeculationParams, sampling: SamplingParams, why: str
) -> None:
    rig.cutter.cut_after = 2
    with pytest.raises(StreamBroken, match=f"broke after .* tokens: cut; it cannot be resumed: .*{why}") as e:
        await rig.streamed((rig.cut, rig.router), speculation, sampling)
    assert e.value.received.tokens and e.value.received.finish_reason is None
    assert len(rig.cutter.requests) == 1


async def test_a_server_that_cannot_say_what_a_response_comes_of_is_not_resumed(rig: Rig) -> None:
    rig.cutter.cut_after, rig.cutter.strip_origin = 2, True
    with pytest.raises(StreamBroken, match="did not send the origin of the response"):
        await rig.streamed((rig.cut, rig.router), EXACT)


async def test_a_stream_that_nobody_goes_on_with_is_broken(rig: Rig) -> None:
    rig.cutter.cut_after = 2
    async with AsyncClient(rig.cut, retries=0) as client:
        stream = client.stream(PROMPT, LENGTH, speculation=EXACT)
        with pytest.raises(StreamBroken, match="no server resumed it"):
            [chunk async for chunk in stream]


async def test_a_router_that_dies_in_any_round_is_succeeded_by_the_next(tmp_path: Path) -> None:
    model, target = save_tokenizer(tmp_path), FakeTarget(HashModel())
    async with serving(target.host) as address:
        config = RouterConfig(model=model, grpc_port=0, targets=(address,), stream_interval_s=0.0)
        async with serving(await create_host(config)) as second:
            async with AsyncClient(second) as client:
                expected = await client.generate(PROMPT, 8, speculation=PLAIN)
            for fatal_step in range(1, 9):
                first = await create_host(config)
                async with serving(first):
                    target.script = killing(first, target.num_steps + fatal_step)
                    async with AsyncClient([first.address, second]) as client:
                        stream = client.stream(PROMPT, 8, speculation=PLAIN)
                        assert [chunk async for chunk in stream]
                    assert stream.response.text == expected.text
                    assert stream.response.resumed == (fatal_step > 1)


def killing(host: Host, fatal_step: int) -> Any:
    """A script that ends the host at once while the step is played."""

    async def script(step: int) -> None:
        if step == fatal_step:
            await host.drain(0.0)

    return script


async def test_leaving_a_stream_cancels_it(tmp_path: Path) -> None:
    target = FakeTarget(HashModel())
    async with serving(target.host) as address:
        config = RouterConfig(model=save_tokenizer(tmp_path), grpc_port=0, targets=(address,))
        async with serving(await create_host(config)) as router, AsyncClient(router) as client:
            async with client.stream(PROMPT, 400, speculation=PLAIN) as stream:
                async for _ in stream:
                    break
            await closed(target)
            waiting = client.stream(PROMPT, 400, speculation=PLAIN)
            await anext(waiting)
            task = asyncio.create_task(anext(waiting))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await closed(target)
