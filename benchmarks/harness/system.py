"""The measured system: processes, or hosts in this process."""

import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import yaml

from flyserve.cli.terminal import messages
from flyserve.client import Client
from orchestration.local.processes import ServiceProcess, StopSignals, service_process
from services.common.host import Host

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"
RESULTS = ROOT / "benchmarks" / "results"
DEMO_MODELS = ROOT / "demo" / "models"
_START_TIMEOUT_S, GRACE_S, _SCRAPE_TIMEOUT_S = 600.0, 20.0, 10.0
METRICS = {"metrics_port": 0}
"""Telemetry settings that serve metrics at a free port."""

Flags = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Service:
    """A running process of the system.

    Attributes:
        folder: Folder of its log and its files.
    """

    process: ServiceProcess
    folder: Path

    @property
    def address(self) -> str:
        """host:port of its gRPC server."""
        return self.process.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """All its addresses: gRPC, then URLs."""
        return (self.process.address, *self.process.urls)

    def scrape(self) -> str:
        """Return the metrics as Prometheus reads them, or "" if the process serves none."""
        found = re.search(r"metrics at (\S+)", self.process.log.read_text("utf-8"))
        if found is None:
            return ""
        with urlopen(found[1], timeout=_SCRAPE_TIMEOUT_S) as response:
            text: str = response.read().decode()
            return text


class Services:
    """Processes that run until a block ends; see `running_services`."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.folder = folder
        self._stack = stack
        self._environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self._num_started = 0

    def start(self, *command: str, name: str = "") -> Service:
        """Start `python -m <command>` and wait until it serves.

        Raises:
            ConfigError: The process ended; the error has its last line.
            NotReady: The process did not serve in time.
        """
        return self._start(command, self.new_folder(name or command[0]))

    def start_together(self, commands: Sequence[Flags]) -> list[Service]:
        """Start processes side by side and wait until all serve."""
        folders = [self.new_folder(command[0]) for command in commands]
        with ThreadPoolExecutor(len(commands)) as pool:
            # NOTE: the stack accepts contexts from any thread; if one start fails, the others end with it.
            return list(pool.map(self._start, commands, folders))

    def router_command(
        self,
        targets: Sequence[str],
        drafters: Sequence[str],
        config: Mapping[str, Any],
        program: Flags = ("router",),
    ) -> Flags:
        """Return the command of a router in front of these replicas, with a new configuration file.

        Args:
            targets: Addresses of the targets.
            drafters: Addresses of the drafters.
            config: Other keys of the configuration.
            program: Module that runs the router, with its own arguments.
        """
        keys = {"model": str(DEMO_MODELS / "target"), "grpc_port": 0, **config}
        keys |= {"targets": list(targets), "drafters": list(drafters)}
        file = self.new_folder("config") / "router.yaml"
        file.write_text(yaml.safe_dump(keys), encoding="utf-8")
        return (*program, "--config", str(file))

    def _start(self, command: Sequence[str], folder: Path) -> Service:
        made = service_process(command, self._environment, folder, _START_TIMEOUT_S, GRACE_S)
        return Service(self._stack.enter_context(made), folder)

    def new_folder(self, name: str) -> Path:
        """Return a new folder, which is deleted when the block ends."""
        self._num_started += 1
        folder = self.folder / f"{name}-{self._num_started}"
        folder.mkdir()
        return folder


@contextmanager
def running_services() -> Iterator[Services]:
    """Yield what starts processes; they run while the block does. For the main thread only (signals)."""
    with StopSignals() as signals, TemporaryDirectory(prefix="flyserve-") as folder, ExitStack() as stack:
        try:
            yield Services(stack, Path(folder))
        finally:
            # NOTE: before the stack unwinds: nothing may interrupt the stop.
            signals.ignore()


@contextmanager
def running_fleets(
    target: Flags,
    drafters: Mapping[str, Sequence[Flags]],
    helpers: Mapping[str, Flags] | None = None,
    config: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[dict[str, Client]]:
    """Yield a client for each name: one target for all, and drafters and a router for each name.

    A replica without requests is idle and costs nothing, so that all ways can be measured in turn.

    Args:
        target: Command of the target.
        drafters: Commands of the drafters; a flag that is the name of a helper becomes its address.
        helpers: Commands of services that drafters use.
        config: Other keys of the routers' configurations, by the same names.
    """
    helpers, config = helpers or {}, config or {}
    with (
        running_services() as services,
        ExitStack() as stack,
        messages().status("starting the services") as status,
    ):
        verifier, *helping = services.start_together([target, *helpers.values()])
        addresses = {name: each.address for name, each in zip(helpers, helping, strict=True)}
        commands = [
            tuple(addresses.get(flag, flag) for flag in command)
            for own in drafters.values()
            for command in own
        ]
        started = iter(services.start_together(commands))
        found = {name: [next(started).address for _ in own] for name, own in drafters.items()}
        routers = services.start_together(
            [
                services.router_command([verifier.address], own, config.get(name, {}))
                for name, own in found.items()
            ]
        )
        clients = [stack.enter_context(Client(router.address)) for router in routers]
        status.stop()
        yield dict(zip(found, clients, strict=True))


def model_flags(
    folder: Path, dtype: str, max_sequences: int = 8, kv_tokens: int = 8192, threads: int = 1
) -> Flags:
    """Return the flags of a service with a model; a GGUF file has its own type."""
    kind = ("--engine", "llamacpp") if folder.suffix == ".gguf" else ("--dtype", dtype)
    model = ("--model", str(folder), *kind, "--threads", str(threads))
    return (*model, *_memory_flags(max_sequences, kv_tokens))


def simulated_flags(parameters: Mapping[str, Any], max_sequences: int = 64, kv_tokens: int = 65536) -> Flags:
    """Return the flags of a service with a simulated model."""
    return ("--simulated", json.dumps(dict(parameters)), *_memory_flags(max_sequences, kv_tokens))


LOOKUP_DRAFTER: Flags = ("services.lookup", "--role", "drafter")
"""Command of a drafter without a model."""


def sub_drafter_command(response_cache_tokens: int | None = None) -> Flags:
    """Return the command of a sub-drafter."""
    cache = () if response_cache_tokens is None else ("--response-cache-tokens", str(response_cache_tokens))
    return ("services.lookup", *cache)


def _memory_flags(max_sequences: int, kv_tokens: int) -> Flags:
    return ("--max-sequences", str(max_sequences), "--kv-tokens", str(kv_tokens))


@asynccontextmanager
async def serving(host: Host) -> AsyncIterator[str]:
    """Yield the address of a host in this event loop; when the block ends, its calls end at once."""
    await host.start()
    try:
        yield host.address
    finally:
        await host.drain(0.0)
