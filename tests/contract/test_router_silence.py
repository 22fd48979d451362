"""Silent hosts: they send nothing and no connection ends, and responses continue elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Role
from flyserve.v1 import common_pb2
from orchestration.control.registry import Registry, registry_service
from router.config import RouterConfig
from router.server import create_host
from services.common.host import Host
from tests.contract.fakes import FakeDrafter, FakeService, FakeTarget, HashModel, held
from tests.contract.router_rig import EXACT, PLAIN, Rig, ids
from tests.support.proxy import Proxy, proxied
from tests.support.serving import connected, serving

PATIENCE_S = 240


@asynccontextmanager
async def routed(
    model: Path,
    targets: Sequence[str] = (),
    drafters: Sequence[str] = (),
    probe_timeout_s: float = 0.3,
    **config: Any,
) -> AsyncIterator[Rig]:
    """Start a router of these addresses, with the default long timeouts of steps."""
    made = RouterConfig(
        model=model,
        grpc_port=0,
        stream_interval_s=0.0,
        targets=tuple(targets),
        drafters=tuple(drafters),
        probe_interval_s=0.1,
        probe_timeout_s=probe_timeout_s,
        **config,
    )
    async with asyncio.timeout(PATIENCE_S):
        host = await create_host(made)
        async with connected(host) as channel:
            yield Rig(channel, host.addresses)


@asynccontextmanager
async def behind_proxies(*fakes: FakeService) -> AsyncIterator[list[Proxy]]:
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(fake.host)) for fake in fakes]
        yield [await stack.enter_async_context(proxied(address)) for address in addresses]


def paced(fake: FakeService, seconds: float = 0.01) -> FakeService:
    """Slow every step down, so that faults can occur in the middle of a response."""

    async def script(number: int) -> None:
        await asyncio.sleep(seconds)

    fake.script = script
    return fake


async def stepped(fake: FakeService, more: int) -> None:
    wanted = fake.num_steps + more
    while fake.num_steps < wanted:
        fake.stepped.clear()
        await fake.stepped.wait()


async def test_a_silent_target_is_replaced_in_the_middle_of_a_stream(model: Path) -> None:
    targets = [FakeTarget(HashModel()), FakeTarget(HashModel())]
    async with (
        behind_proxies(*targets) as proxies,
        routed(model, [proxy.address for proxy in proxies]) as rig,
    ):
        expected = ids(await rig.generate(PLAIN))
        for target in targets:
            paced(target).num_steps = 0
        calls = [asyncio.create_task(rig.generate(PLAIN)) for _ in range(4)]
        await asyncio.gather(*(stepped(target, 12) for target in targets))
        proxies[0].swallow()
        responses = await asyncio.gather(*calls)
    assert all(ids(response) == expected for response in responses)
    assert sum(response.statistics.replays for response in responses) >= 1


class Hanging(FakeTarget):
    """A target that answers no probe once it hangs."""

    hangs = False

    async def Info(self, request: Any, context: Any) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().Info(request, context)


@pytest.mark.parametrize("drains", [True, False])
async def test_a_target_that_hangs_while_it_drains_or_after_it_left_the_registry_is_replaced(
    model: Path, drains: bool
) -> None:
    hanging, sound, registry = Hanging(HashModel()), FakeTarget(HashModel()), Registry()
    config: dict[str, Any] = {"http_port": 0, "balancing": "round_robin", "verify_timeout_s": 2 * PATIENCE_S}
    async with (
        serving(hanging.host) as first,
        serving(sound.host) as second,
        serving(Host(registry_service(registry))) as address,
    ):
        leaving, kept = Endpoint(Role.TARGET, first, "leaving"), Endpoint(Role.TARGET, second, "kept")
        registry.publish((leaving, kept))
        async with (
            routed(model, registry=address, **config) as rig,
            httpx2.AsyncClient(base_url=rig.addresses[1], timeout=PATIENCE_S) as http,
        ):

            async def has_targets(number: int) -> None:
                line = f'flyserve_replicas{{role="target"}} {number}.0\n'
                while line not in (await http.get("/metrics")).text:
                    await asyncio.sleep(0.01)

            await has_targets(2)
            expected = ids(await rig.generate(PLAIN))
            hanging.num_steps = 0
            held(hanging, 3)
            calls = [asyncio.create_task(rig.generate(PLAIN)) for _ in range(4)]
            await stepped(hanging, 3)
            registry.publish((replace(leaving, draining=True), kept) if drains else (kept,))
            await has_targets(1)
            hanging.hangs = True
            responses = await asyncio.gather(*calls)
    assert all(ids(response) == expected for response in responses)
    assert sum(response.statistics.replays for response in responses) >= 1


async def test_a_target_that_ends_refuses_probes_and_finishes_its_sequences(model: Path) -> None:
    targets = [FakeTarget(HashModel()), FakeTarget(HashModel())]
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(paced(target, 0.03).host)) for target in targets]
        rig = await stack.enter_async_context(routed(model, addresses, balancing="round_robin"))
        calls = [asyncio.create_task(rig.generate(PLAIN)) for _ in targets]
        await stepped(targets[0], 5)
        end = asyncio.create_task(targets[0].host.drain(PATIENCE_S))
        assert [response.statistics.replays for response in await asyncio.gather(*calls)] == [0, 0]
        await end


async def test_decoding_continues_without_a_silent_drafter_until_it_recovers(model: Path) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel(agreement=0.5))
    async with (
        behind_proxies(target, drafter) as (to_target, to_drafter),
        routed(model, [to_target.address], [to_drafter.address]) as rig,
    ):
        expected = ids(await rig.generate(PLAIN, 400))
        paced(target, 0.005)
        call = asyncio.create_task(rig.generate(EXACT, 400))
        await stepped(drafter, 5)
        to_drafter.swallow()
        await to_drafter.swallowed.wait()
        await stepped(target, 10)
        num_steps = drafter.num_steps
        to_drafter.recover()
        await stepped(drafter, 5)
        response = await call
    assert ids(response) == expected
    assert response.statistics.rounds - response.statistics.draft_rounds >= 10
    assert drafter.num_steps > num_steps


async def test_a_replica_that_answers_streams_but_no_probe_is_kept(model: Path) -> None:
    class Busy(FakeTarget):
        num_probes = 0

        async def Info(self, request: Any, context: Any) -> common_pb2.InfoResponse:
            self.num_probes += 1
            if self.num_probes > 1:
                await asyncio.Event().wait()
            response: common_pb2.InfoResponse = await super().Info(request, context)
            return response

    target = Busy(HashModel())
    # A step is ten times as fast as what counts as silence, however busy the machine is.
    paced(target, 0.2)
    async with serving(target.host) as address, routed(model, [address], probe_timeout_s=1.0) as rig:
        response = await rig.generate(PLAIN)
    assert target.num_probes > 2 and response.statistics.replays == 0
