"""A router whose targets may scale to zero: it starts without one, and holds requests until one is there."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from httpx2 import AsyncClient

from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Role
from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from orchestration.control.registry import Registry, registry_service
from router.config import RouterConfig
from router.server import create_host
from services.common.host import Host
from tests.contract.fakes import FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import PLAIN, Rig
from tests.support.serving import becomes_true, connected, serving

PATIENCE_S = 240


@asynccontextmanager
async def without_target(folder: Path, **config: Any) -> AsyncIterator[tuple[Registry, Rig]]:
    """Serve a router behind a registry that lists nothing yet."""
    registry = Registry()
    async with serving(Host(registry_service(registry))) as address:
        made = RouterConfig(
            model=save_tokenizer(folder),
            grpc_port=0,
            http_port=0,
            registry=address,
            scales_to_zero=True,
            **{"replica_wait_s": PATIENCE_S, **config},
        )
        host = await create_host(made)
        async with connected(host) as channel:
            yield registry, Rig(channel, host.addresses)


async def test_requests_wait_are_reported_and_are_served_when_a_target_comes(tmp_path: Path) -> None:
    target = FakeTarget(HashModel())
    async with without_target(tmp_path) as (registry, rig):
        calls = [asyncio.create_task(rig.choices(PLAIN, 5, n=2)) for _ in range(3)]
        assert await becomes_true(lambda: registry.waiting() == 6, PATIENCE_S)
        async with serving(target.host) as address:
            registry.publish((Endpoint(Role.TARGET, address, "target-0"),))
            answers = await asyncio.gather(*calls)
            assert await becomes_true(lambda: registry.waiting() == 0, PATIENCE_S)
    assert [[len(choice.tokens) for choice in choices] for choices, _ in answers] == [[5, 5]] * 3


async def test_the_wait_is_bounded_in_time_and_in_requests(tmp_path: Path) -> None:
    limits = {"replica_wait_s": 3.0, "max_concurrent": 1, "max_queued": 1}
    async with without_target(tmp_path, **limits) as (registry, rig):
        calls = [asyncio.create_task(rig.generate(PLAIN, 5)) for _ in range(2)]
        assert await becomes_true(lambda: registry.waiting() == 2, PATIENCE_S)
        with pytest.raises(grpc.aio.AioRpcError, match="2 requests wait for one already") as full:
            await rig.generate(PLAIN, 5)
        assert full.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert {error.code() for error in found if isinstance(error, grpc.aio.AioRpcError)} == {
        grpc.StatusCode.UNAVAILABLE
    }


async def test_calls_of_info_take_no_place_of_a_request_that_waits(tmp_path: Path) -> None:
    async with without_target(tmp_path, max_concurrent=1, max_queued=1) as (registry, rig):
        calls = [rig.stub.Info(common_pb2.InfoRequest()) for _ in range(6)]
        infos = [asyncio.create_task(rejection_of(each)) for each in calls]
        (first, *_), _ = await asyncio.wait(infos, return_when=asyncio.FIRST_COMPLETED)
        assert "2 requests wait for one already" in first.result()
        call = asyncio.create_task(rig.choices(PLAIN, 5, n=2))
        assert await becomes_true(lambda: registry.waiting() == 2, PATIENCE_S)
        for task in (call, *infos):
            task.cancel()


async def rejection_of(call: Awaitable[Any]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await call
    return found.value.details() or ""


async def test_a_request_that_no_target_could_serve_waits_for_none(tmp_path: Path) -> None:
    async with without_target(tmp_path) as (registry, rig), AsyncClient(base_url=rig.addresses[1]) as http:
        for n in (17, 2**32 - 1):
            with pytest.raises(grpc.aio.AioRpcError, match=f"n is {n}, must be 1 to 16"):
                await rig.choices(PLAIN, 5, n=n)
        (model,) = (await http.get("/v1/models")).json()["data"]
        odd = {"model": model["id"], "prompt": "x", "n": -1, "temperature": 0}
        answer = await http.post("/v1/completions", json=odd, timeout=PATIENCE_S)
        assert answer.status_code == 400 and "n is -1" in answer.json()["error"]["message"]
        call = asyncio.create_task(rig.generate(PLAIN, 5))
        assert await becomes_true(lambda: registry.waiting() == 1, PATIENCE_S)
        call.cancel()


async def test_a_client_that_leaves_waits_no_more(tmp_path: Path) -> None:
    async with without_target(tmp_path) as (registry, rig):
        call = asyncio.create_task(rig.generate(PLAIN, 5))
        assert await becomes_true(lambda: registry.waiting() == 1, PATIENCE_S)
        call.cancel()
        assert await becomes_true(lambda: registry.waiting() == 0, PATIENCE_S)


async def test_the_router_is_ready_and_lists_its_model_without_a_target(tmp_path: Path) -> None:
    async with without_target(tmp_path) as (_, rig):
        base = rig.addresses[1]

        def get(path: str) -> Any:
            with urlopen(f"{base}{path}", timeout=PATIENCE_S) as response:
                return json.load(response)

        assert (await asyncio.to_thread(get, "/health"))["status"] == "ready"
        (model,) = (await asyncio.to_thread(get, "/v1/models"))["data"]
        assert model["id"] and "max_model_len" not in model


async def test_a_response_that_waits_for_its_weights_asks_for_no_more_targets(tmp_path: Path) -> None:
    resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=[5])], weight_fingerprint="others")
    async with (
        without_target(tmp_path) as (registry, rig),
        AsyncClient(base_url=rig.addresses[1]) as http,
        serving(FakeTarget(HashModel()).host) as address,
    ):
        registry.publish((Endpoint(Role.TARGET, address, "target-0"),))
        await rig.generate(PLAIN, 5)
        call = asyncio.create_task(rig.generate(PLAIN, 5, resume=resume))
        async with asyncio.timeout(PATIENCE_S):
            while "flyserve_requests_queued 1.0\n" not in (metrics := (await http.get("/metrics")).text):
                await asyncio.sleep(0.01)
        assert "flyserve_choices_queued 0.0\n" in metrics
        call.cancel()


async def test_a_target_with_another_tokenizer_is_not_used(tmp_path: Path) -> None:
    small, right = FakeTarget(HashModel(), vocab_size=100), FakeTarget(HashModel())
    async with without_target(tmp_path) as (registry, rig), serving(small.host), serving(right.host):
        wrong = Endpoint(Role.TARGET, small.host.address, "target-0")
        registry.publish((wrong,))
        call = asyncio.create_task(rig.generate(PLAIN, 5))
        assert await becomes_true(lambda: registry.waiting() == 1, PATIENCE_S)
        registry.publish((wrong, Endpoint(Role.TARGET, right.host.address, "target-1")))
        assert len((await call).tokens) == 5
        assert small.num_opened == 0
