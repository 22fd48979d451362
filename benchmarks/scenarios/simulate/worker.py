"""`python -m benchmarks.scenarios.simulate.worker`: several hosts in one process, on one dilated clock."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import typer
import uvloop
from prometheus_client import CollectorRegistry
from pydantic import Field

from benchmarks.harness.system import serving
from benchmarks.scenarios.simulate.pace import PacedClock, Sampler
from fly.messages import Role
from router.config import RouterConfig
from router.server import create_host
from services.common.config import Config, load_yaml
from services.common.host import Host
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.logs import configure_logging
from services.common.telemetry.process import Telemetry, silent_telemetry
from services.drafter.servicer import host_engine as host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.config import ModelSection
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.target.servicer import host_engine as host_target


class ServiceSpec(Config):
    """Replicas of one tier, all alike.

    Attributes:
        role: Target or drafter.
        number: Number of replicas.
        max_sequences: Open sequences of one replica.
        kv_tokens: KV tokens of one replica.
        max_batch_tokens: Token rows of one forward.
    """

    role: Role
    model: SimulatedConfig
    number: int = Field(ge=1)
    max_sequences: int = Field(ge=1)
    kv_tokens: int = Field(ge=1)
    max_batch_tokens: int = Field(ge=1)


class WorkerSpec(Config):
    """The hosts of one process.

    Attributes:
        dilation: Real seconds per second of the clock.
        samples: File for the samples.
    """

    dilation: float = Field(gt=0)
    samples: Path = Path("samples.jsonl")
    services: tuple[ServiceSpec, ...] = ()
    routers: tuple[RouterConfig, ...] = ()


def main(spec: Path) -> None:
    """Serve the hosts of a file until SIGTERM; print their addresses in the order of the file."""
    configure_logging(TelemetryConfig(), "worker")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(load_yaml(WorkerSpec, spec)))


async def _serve(spec: WorkerSpec) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock, registries = PacedClock(spec.dilation), list[CollectorRegistry]()
    async with AsyncExitStack() as stack:
        addresses = [
            await stack.enter_async_context(serving(host)) async for host in _hosts(spec, clock, registries)
        ]
        await stack.enter_async_context(Sampler(spec.samples, clock, registries))
        typer.echo(f"ready {' '.join(addresses)}")
        await stop.wait()


async def _hosts(
    spec: WorkerSpec, clock: PacedClock, registries: list[CollectorRegistry]
) -> AsyncIterator[Host]:
    for service in spec.services:
        for _ in range(service.number):
            runner = SimulatedRunner(service.model, service.role, service.max_sequences, service.kv_tokens)
            limits = ModelSection(max_batch_tokens=service.max_batch_tokens, max_queued=service.max_sequences)
            engine = ClockEngine(runner, clock, limits)
            await engine.start()
            telemetry = _counted()
            assert telemetry.registry is not None
            registries.append(telemetry.registry)
            if service.role is Role.TARGET:
                yield host_target(engine, telemetry=telemetry)
            else:
                yield host_drafter(engine, SubDrafters(None), telemetry=telemetry)
    for config in spec.routers:
        yield await create_host(config, clock)


def _counted() -> Telemetry:
    """Return telemetry that counts only for this process."""
    telemetry = silent_telemetry()
    telemetry.registry = CollectorRegistry()
    return telemetry


if __name__ == "__main__":
    typer.run(main)
