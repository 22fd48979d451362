"""A whole system of simulated engines on loopback, with telemetry in every process."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import router.server
import services.drafter.servicer
import services.lookup.servicer
import services.target.servicer
from router.config import RouterConfig
from services.common.channel import open_channel
from services.common.host import Host
from services.drafter.config import DrafterConfig
from services.engine.simulation.runner import SimulatedConfig
from services.lookup.config import SuffixConfig
from services.target.config import TargetConfig
from tests.contract.router_rig import Rig

TARGET = SimulatedConfig(base_s=0.0, per_token_s=0.0, context_length=512, response_tokens=(256, 256))
DRAFTER = replace(TARGET, agreement=0.9)


@dataclass(frozen=True)
class Scrape:
    """The samples of one process at one scrape."""

    samples: list[Sample]

    def __call__(self, name: str, **labels: str) -> float:
        """Return the sum of a sample's values over all labels that are not given."""
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert found, f"there is no {name} {labels}"
        return sum(found)


class TelemetryRig(Rig):
    """A client of a running router, and every host behind it."""

    def __init__(self, channel: Any, hosts: dict[str, Host]) -> None:
        super().__init__(channel, hosts["router"].addresses)
        self.hosts = hosts

    async def scrape(self, role: str) -> Scrape:
        text = await asyncio.to_thread(fetch, self.hosts[role].telemetry.metrics_address)
        families = list(text_string_to_metric_families(text))
        return Scrape([sample for family in families for sample in family.samples])


def fetch(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=240) as response:
        return str(response.read().decode())


@asynccontextmanager
async def running_with_telemetry(
    model: Path,
    telemetry: dict[str, Any],
    silent: Iterable[str] = (),
    target: SimulatedConfig = TARGET,
    **config: Any,
) -> AsyncIterator[TelemetryRig]:
    """Run router, target, drafter and sub-drafter; the roles in `silent` have no telemetry."""
    async with AsyncExitStack() as stack:
        hosts: dict[str, Host] = {}

        def section(role: str) -> dict[str, Any]:
            return (
                {}
                if role in silent
                else {"telemetry": {**telemetry, "replica": f"{role}-0", "deployment": "mine"}}
            )

        async def start(role: str, host: Host) -> str:
            await host.start()
            hosts[role] = host
            return host.address

        async def drain() -> None:
            # Together: the end of each metrics server takes half a second.
            await asyncio.gather(*(host.drain(0.0) for host in hosts.values()))

        stack.push_async_callback(drain)

        sub_drafter = await start(
            "sub_drafter",
            await services.lookup.servicer.create_host(
                SuffixConfig(response_cache_tokens=4096, **section("sub_drafter"))
            ),
        )
        drafter = await start(
            "drafter",
            await services.drafter.servicer.create_host(
                DrafterConfig(simulated=DRAFTER, sub_drafter=sub_drafter, **section("drafter"))
            ),
        )
        verifier = await start(
            "target",
            await services.target.servicer.create_host(TargetConfig(simulated=target, **section("target"))),
        )
        served = RouterConfig(
            stream_interval_s=0.0,
            model=model,
            grpc_port=0,
            targets=(verifier,),
            drafters=(drafter,),
            **section("router"),
            **config,
        )
        address = await start("router", await router.server.create_host(served))
        channel = await stack.enter_async_context(open_channel(address))
        yield TelemetryRig(channel, hosts)
