"""Admission control from the client's side: fairness, and rejections with a retry delay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from flyserve.wire.status import from_rpc_error
from router.security import peers
from tests.contract.fakes import FakeTarget, HashModel, held, save_tokenizer
from tests.contract.router_rig import PLAIN, Rig, make_request, running

HELD_S = 2.0
"""Time that a request takes where the router must know it."""


class Queue:
    """A router that serves one request at a time, whose target answers once `gate` is set."""

    def __init__(self, rig: Rig, http: httpx2.AsyncClient, target: FakeTarget) -> None:
        self.rig, self.http, self.target = rig, http, target
        self.gate = held(target)

    @property
    def served(self) -> list[str]:
        """Names of the requests that reached the target, in order."""
        return [opening.request_id.partition("/")[0] for opening in self.target.openings]

    async def by_grpc(self, name: str, salt: str, **options: Any) -> None:
        request = make_request(PLAIN, 1, cache_salt=salt, request_id=name)
        await self.rig.stub.Generate(request, **options)

    async def by_http(self, name: str, salt: str) -> None:
        body = {"model": "fake", "prompt": "fox", "max_tokens": 1, "cache_salt": salt}
        response = await self.http.post("/v1/completions", json=body, headers={"X-Request-Id": name})
        assert response.status_code == 200

    async def holds(self, number: int) -> None:
        """Wait until this number of requests is queued."""
        async with asyncio.timeout(240):
            while f"flyserve_requests_queued {number:.1f}\n" not in (await self.http.get("/metrics")).text:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def queueing(folder: Path, **config: Any) -> AsyncIterator[Queue]:
    model, target = save_tokenizer(folder), FakeTarget(HashModel())
    async with (
        running(model, [target], max_concurrent=1, http_port=0, model_name="fake", **config) as rig,
        httpx2.AsyncClient(base_url=rig.addresses[1], timeout=240) as http,
    ):
        yield Queue(rig, http, target)


@pytest.mark.parametrize("floods_by_http", [False, True])
async def test_who_floods_the_router_delays_others_by_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, floods_by_http: bool
) -> None:
    # Both have one IP address here, and differ in how each protocol reports it.
    monkeypatch.setattr(peers, "network_of", lambda address: address)
    async with queueing(tmp_path) as queue:
        floods, asks = queue.by_grpc, queue.by_http
        if floods_by_http:
            floods, asks = asks, floods
        flood = [asyncio.create_task(floods(f"flood-{number}", f"{number}")) for number in range(4)]
        await queue.holds(3)
        quiet = asyncio.create_task(asks("quiet", "quiet"))
        await queue.holds(4)
        queue.gate.set()
        await asyncio.gather(quiet, *flood)
    assert queue.served.index("quiet") == 1


async def test_fresh_salts_neither_overtake_nor_displace_what_is_queued(tmp_path: Path) -> None:
    async with queueing(tmp_path, max_queued=12) as queue:
        own = [asyncio.create_task(queue.by_http(f"own-{number}", "own")) for number in range(6)]
        await queue.holds(5)
        fresh = [asyncio.create_task(queue.by_grpc(f"fresh-{each}", f"{each}")) for each in range(50)]
        await queue.holds(12)
        async with asyncio.timeout(240):
            while sum(task.done() for task in fresh) < 50 - 7:
                await asyncio.sleep(0.01)
        queue.gate.set()
        await asyncio.gather(*own)
        rejected = [error for error in await asyncio.gather(*fresh, return_exceptions=True) if error]
    assert sorted(queue.served[:6]) == [f"own-{number}" for number in range(6)]
    assert len(rejected) == 50 - 7


async def test_what_cannot_be_done_in_time_is_rejected_before_anything_is_done(tmp_path: Path) -> None:
    async with queueing(tmp_path) as queue:
        first = asyncio.create_task(queue.by_grpc("first", ""))
        await queue.target.stepped.wait()
        await asyncio.sleep(HELD_S)
        queue.gate.set()
        await first
        queue.gate.clear()
        calls = [asyncio.create_task(queue.by_grpc(f"{number}", "")) for number in range(3)]
        await queue.holds(2)
        num_opened = queue.target.num_opened
        with pytest.raises(grpc.aio.AioRpcError) as rejected:
            await queue.by_grpc("late", "", timeout=3 * HELD_S)
        assert rejected.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert queue.target.num_opened == num_opened
        retry_after_s = getattr(from_rpc_error(rejected.value), "retry_after_s", 0.0)
        assert retry_after_s > 2 * HELD_S
        queue.gate.set()
        await asyncio.gather(*calls)
