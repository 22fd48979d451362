"""A drafter that never agrees: its alarm in every place, and the requests that it gets no more."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Role
from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from orchestration.control.registry import Registry, registry_service
from router.config import RouterConfig
from router.server import create_host
from services.common.host import Host
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel
from tests.contract.router_rig import EXACT, Answer, Rig
from tests.contract.telemetry_rig import fetch
from tests.support.serving import becomes_true, connected, serving

PATIENCE_S = 240
MOST_REQUESTS = 2000
"""Ends a test that would never see the state it waits for; a usual run needs a tenth."""


class Fleet(NamedTuple):
    registry: Registry
    rig: Rig
    metrics: str

    async def ask(self, number: int) -> Answer:
        prompt = pb.TokenIds(ids=[40, 41, 2 + number % 300])
        return await self.rig.generate(
            EXACT, 24, speculation={"draft_length": {"max": 2}}, prompt_token_ids=prompt
        )

    async def warnings(self) -> list[str]:
        return list((await self.rig.stub.Info(common_pb2.InfoRequest())).warnings)

    async def ask_until(self, part: str) -> list[str]:
        """Send requests until the deployment has a warning with this part; return the alarms of responses."""
        found: list[str] = []
        for number in range(MOST_REQUESTS):
            found += [each for each in (await self.ask(number)).warnings if "rejected" in each]
            if any(part in warning for warning in await self.warnings()):
                return found
        raise AssertionError(f"no warning says {part!r}: {await self.warnings()}")


@asynccontextmanager
async def fleet(model: Path, drafters: Sequence[FakeDrafter], patience: float) -> AsyncIterator[Fleet]:
    """Serve a target and drafters behind a router with a registry."""
    registry, target = Registry(), FakeTarget(HashModel())
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(Host(registry_service(registry))))
        found = [Endpoint(Role.TARGET, await stack.enter_async_context(serving(target.host)), "target-0")]
        for index, drafter in enumerate(drafters):
            place = await stack.enter_async_context(serving(drafter.host))
            found.append(Endpoint(Role.DRAFTER, place, f"drafter-{index}"))
        registry.publish(tuple(found))
        config = RouterConfig(
            model=model,
            grpc_port=0,
            registry=address,
            balancing="round_robin",
            draft_patience=patience,
            stream_interval_s=0.0,
            telemetry={"metrics_port": 0},
        )
        host = await create_host(config)
        rig = Rig(await stack.enter_async_context(connected(host)), host.addresses)
        await rig.meets_a_drafter()
        yield Fleet(registry, rig, host.telemetry.metrics_address)


@pytest.mark.parametrize("patience", [1e6, 0.0], ids=["in time", "late"])
async def test_a_drafter_that_never_agrees_raises_an_alarm_and_is_left_out(
    model: Path, patience: float, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = FakeDrafter(HashModel(agreement=0.0)), FakeDrafter(HashModel())
    async with fleet(model, [bad, good], patience) as served:
        assert not await served.ask_until("drafter-0: nearly all of its drafts are rejected")
        warnings = await served.ask_until("it is left out")
        assert warnings and all(f"{bad.host.address}: nearly all" in warning for warning in warnings)
        assert await becomes_true(
            lambda: "left out" in served.registry.alarms().get("drafter-0", ""), PATIENCE_S
        )
        metrics, num_before = fetch(served.metrics), bad.num_opened
        for number in range(64):
            assert len((await served.ask(number)).tokens) == 24
        assert bad.num_opened - num_before < 32, "half of them, if it were not left out"
    assert 'flyserve_drafter_state{drafter="drafter-0",state="left_out"} 1.0' in metrics
    assert 'flyserve_drafter_state{drafter="drafter-1",state="usual"} 1.0' in metrics
    alarms = [r for r in caplog.records if r.levelno == logging.WARNING and "are rejected" in r.getMessage()]
    assert len(alarms) == 2 and bad.host.address in alarms[0].getMessage()


async def test_a_restarted_drafter_has_no_alarm(model: Path) -> None:
    bad, good = FakeDrafter(HashModel(agreement=0.0)), FakeDrafter(HashModel())
    async with fleet(model, [bad], 1e6) as served, serving(good.host) as address:
        await served.ask_until("no other drafter is compared")
        assert await becomes_true(lambda: "drafter-0" in served.registry.alarms(), PATIENCE_S)
        (target, before) = served.registry.snapshot.endpoints
        served.registry.publish((target, Endpoint(Role.DRAFTER, address, before.replica, generation=2)))
        assert await becomes_true(lambda: not served.registry.alarms(), PATIENCE_S)
        assert not await served.warnings()
        for number in range(40):
            assert not (await served.ask(number)).warnings
