"""A deployment without Ray, each part a process of its own, with samples of every process."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.system import (
    GRACE_S,
    METRICS,
    Service,
    Services,
    running_services,
    simulated_flags,
    sub_drafter_command,
)
from benchmarks.scenarios.soak.report import Sample

ROUTER, REPLACED = "router", "target-1"
_TELEMETRY = ("--telemetry", json.dumps(METRICS))
_LANGUAGE = {"response_tokens": [96, 640]}
_ROOM = (48, 32768)
"""Sequences and KV tokens of a replica."""
_CACHED_TOKENS = 32768
"""Response cache of the sub-drafter: small enough to be full when the warm-up ends."""
_OPEN = ("flyserve_requests_active", "flyserve_sequences_open")


class System:
    """The running processes.

    Attributes:
        addresses: Addresses of the router: gRPC, then the URL of its HTTP API.
    """

    def __init__(self, services: Services, write_timeout_s: float) -> None:
        self._services = services
        self._commands: dict[str, Sequence[str]] = {}
        self._running: dict[str, Service] = {}
        target = ("services.target", *simulated_flags({**_LANGUAGE, "base_s": 0.02}, *_ROOM), *_TELEMETRY)
        targets = [self._start(name, target).address for name in ("target-0", REPLACED)]
        helper = self._start("sub_drafter", (*sub_drafter_command(_CACHED_TOKENS), *_TELEMETRY))
        model = simulated_flags({**_LANGUAGE, "base_s": 0.004, "agreement": 0.85}, *_ROOM)
        flags = ("--sub-drafter", helper.address, *_TELEMETRY)
        drafter = self._start("drafter", ("services.drafter", *model, *flags)).address
        config = {"http_port": 0, "write_timeout_s": write_timeout_s, "telemetry": METRICS}
        router = self._start(ROUTER, services.router_command(targets, [drafter], config))
        self.addresses = router.addresses

    @property
    def names(self) -> Sequence[str]:
        """Names of all processes, in the order of the report."""
        return (ROUTER, *(name for name in self._running if name != ROUTER))

    def replace(self, name: str) -> None:
        """Kill a process and start another one at its address."""
        process = self._running[name].process
        os.kill(process.pid, signal.SIGKILL)
        assert process.has_ended(GRACE_S), f"{name} still runs after SIGKILL"
        command = self._commands[name]
        self._running[name] = self._services.start(*command, "--address", process.address, name=name)

    def sample(self, began_s: float) -> Iterator[Sample]:
        """Yield a sample of every process; a process that is being replaced is left out.

        Args:
            began_s: Start of the load, on the monotonic clock.
        """
        for name in self.names:
            with suppress(psutil.NoSuchProcess, OSError):
                yield self._sample(name, time.monotonic() - began_s)

    def outcomes(self) -> dict[str, int]:
        """Return the requests since the start by outcome, as the router counts them."""
        found: dict[str, int] = {}
        for (name, labels), value in _scrape(self._running[ROUTER]).items():
            if name == "flyserve_requests_total":
                outcome = dict(labels)["outcome"]
                found[outcome] = found.get(outcome, 0) + int(value)
        return found

    def internal_errors(self) -> list[str]:
        """Return the last line of every traceback in the logs, with the process that wrote it."""
        found: list[str] = []
        for log in sorted(self._services.folder.glob("*/*.log")):
            text = log.read_text(encoding="utf-8", errors="replace")
            for block in text.split("Traceback (most recent call last):\n")[1:]:
                last = [line for line in block.splitlines() if line and not line.startswith(" ")]
                found.append(f"{log.parent.name}: {last[0] if last else 'an incomplete traceback'}")
        return found

    def _start(self, name: str, command: Sequence[str]) -> Service:
        self._commands[name] = command
        self._running[name] = self._services.start(*command, name=name)
        return self._running[name]

    def _sample(self, name: str, at_s: float) -> Sample:
        service = self._running[name]
        process, metrics = psutil.Process(service.process.pid), _scrape(service)

        def figure(*names: str) -> int:
            return int(sum(value for (metric, _), value in metrics.items() if metric in names))

        with process.oneshot():
            return Sample(
                process=name,
                at_s=at_s,
                memory_mb=process.memory_info().rss / 1e6,
                files=process.num_fds(),
                threads=process.num_threads(),
                tasks=figure("flyserve_event_loop_tasks"),
                open=figure(*_OPEN),
                kv_tokens=figure("flyserve_kv_used_tokens"),
            )


def _scrape(service: Service) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(service.scrape())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@contextmanager
def running(write_timeout_s: float) -> Iterator[System]:
    """Yield the processes, which run while the block does; for the main thread only (signals)."""
    with running_services() as services:
        yield System(services, write_timeout_s)
