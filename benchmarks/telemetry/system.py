"""Simulated services, a collector, and one router per setting; every router a process of its own."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import grpc
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from benchmarks.telemetry.settings import settings
from demo.paths import MODELS
from orchestration.local.processes import service_process

_START_S, _GRACE_S = 60.0, 10.0
NO_COST = "base_s: 0.0, per_token_s: 0.0, per_token_above_s: 0.0, response_tokens: [100000, 100000]"
_EXPORT_DELAY_MS = "200"
"""Batches of spans leave so soon, not after the usual 5 s: a block pays for its own."""


@dataclass(frozen=True, slots=True)
class Router:
    """A running router.

    Attributes:
        metrics_url: Where it tells its metrics; "" where it does not.
    """

    address: str
    pid: int
    metrics_url: str

    def cpu_s(self) -> float:
        """CPU time of the whole process so far, with the kernel's part, in seconds."""
        # NOTE: Linux's clock of another process: CPUCLOCK_SCHED, in nanoseconds; /proc counts in 10 ms.
        return time.clock_gettime((~self.pid << 3) | 2)

    def scrape(self) -> None:
        """As Prometheus does."""
        if self.metrics_url:
            with urlopen(self.metrics_url, timeout=_GRACE_S) as response:
                response.read()


class _Sink(TraceServiceServicer):
    """Counts the spans that come, and forgets them."""

    num_spans = 0

    def Export(self, request: Any, context: Any) -> Any:
        self.num_spans += sum(
            len(scope.spans) for told in request.resource_spans for scope in told.scope_spans
        )
        return ExportTraceServiceResponse()


@contextmanager
def running_system() -> Iterator[tuple[dict[str, Router], _Sink]]:
    """One router per setting, all in front of the same services, and where their spans go."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        sink = _Sink()
        endpoint = stack.enter_context(_collector(sink))
        target = stack.enter_context(simulated_service(folder, "services.target", f"{{{NO_COST}}}"))
        drafter = stack.enter_context(
            simulated_service(folder, "services.drafter", f"{{{NO_COST}, agreement: 0.9}}")
        )
        routers = {
            name: stack.enter_context(router_process(folder / str(index), target, drafter, told))
            for index, (name, told) in enumerate(settings(endpoint).items())
        }
        yield routers, sink


@contextmanager
def _collector(sink: _Sink) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(sink, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def simulated_service(folder: Path, module: str, simulated: str) -> Iterator[str]:
    """The address of a service whose model is simulated, a process of its own."""
    command = (module, "--simulated", simulated)
    with service_process(command, os.environ, folder, _START_S, _GRACE_S) as process:
        yield process.address


@contextmanager
def router_process(
    folder: Path, target: str, drafter: str, told: dict[str, Any], program: Sequence[str] = ("router",)
) -> Iterator[Router]:
    """A router before these services.

    Args:
        folder: For its files; it is made.
        target: Address of the target.
        drafter: Address of the drafter.
        told: The section `telemetry`.
        program: Module that runs the router, and what comes before the router's flags.
    """
    folder.mkdir()
    config = {"model": str(MODELS / "target"), "grpc_port": 0, "targets": [target], "drafters": [drafter]}
    file = folder / "router.yaml"
    file.write_text(yaml.safe_dump({**config, "telemetry": told}), encoding="utf-8")
    environment = {**os.environ, "OTEL_BSP_SCHEDULE_DELAY": _EXPORT_DELAY_MS, "PYTHONHASHSEED": "0"}
    command = (*program, "--config", str(file))
    with service_process(command, environment, folder, _START_S, _GRACE_S) as process:
        found = re.search(r"metrics at (\S+)", (folder / f"{program[0]}.log").read_text(encoding="utf-8"))
        yield Router(process.address, process.pid, found[1] if found else "")
