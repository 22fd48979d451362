"""A whole system of simulated engines on loopback, with telemetry in every process."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from services.common.channel import open_channel
from services.common.host import Host
from tests.contract.router_rig import Rig
from tests.contract.system_rig import INSTANT, whole_system

TARGET = {**INSTANT, "context_length": 512, "response_tokens": [256, 256]}
DRAFTER = {**TARGET, "agreement": 0.9}


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
    target: Mapping[str, Any] = TARGET,
    **config: Any,
) -> AsyncIterator[TelemetryRig]:
    """Run router, target, drafter and sub-drafter; the roles in `silent` have no telemetry."""
    sections: dict[str, dict[str, Any]] = {
        "sub_drafter": {"response_cache_tokens": 4096},
        "drafter": {"simulated": DRAFTER},
        "target": {"simulated": target},
        "router": {"stream_interval_s": 0.0, **config},
    }
    for role in sections.keys() - set(silent):
        sections[role]["telemetry"] = {**telemetry, "replica": f"{role}-0", "deployment": "mine"}
    async with whole_system(model, **sections) as hosts, open_channel(hosts["router"].address) as channel:
        yield TelemetryRig(channel, hosts)
