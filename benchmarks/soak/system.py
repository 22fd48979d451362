"""A deployment without Ray, every part a process of its own, and one look at each."""

import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.paths import DEMO_MODELS, ROOT
from benchmarks.soak.figures import Sample
from benchmarks.soak.plan import Plan
from orchestration.local.processes import ServiceProcess, StopSignals, service_process

ROUTER, REPLACED = "router", "target-1"
_START_TIMEOUT_S, _GRACE_S, _ANSWER_S = 60.0, 10.0, 5.0
_TELLING = ("--telemetry", "{metrics_port: 0}")
_LANGUAGE = "response_tokens: [96, 640]"
_ROOM = ("--max-sequences", "48", "--kv-tokens", "32768")
_REMEMBERED = "32768"
"""Tokens that the sub-drafter remembers: so few that its memory is full when the warm-up ends."""
_OPEN = ("flyserve_requests_active", "flyserve_sequences_open")


class System:
    """The running processes.

    Attributes:
        addresses: Of the router: gRPC, then the URL of its HTTP face.
    """

    def __init__(self, stack: ExitStack, folder: Path, plan: Plan) -> None:
        self._stack = stack
        self._folder = folder
        self._commands: dict[str, Sequence[str]] = {}
        self._running: dict[str, ServiceProcess] = {}
        self._metrics: dict[str, str] = {}
        places = [self._target(name) for name in ("target-0", REPLACED)]
        memory = ("--engine", "suffix", "--response-cache-tokens", _REMEMBERED)
        helper = self._start("sub_drafter", "services.sub_drafter", *memory).address
        model = ("--simulated", f"{{{_LANGUAGE}, base_s: 0.004, agreement: 0.85}}", *_ROOM)
        drafter = self._start("drafter", "services.drafter", *model, "--sub-drafter", helper).address
        told = {
            "model": str(DEMO_MODELS / "target"),
            "grpc_port": 0,
            "http_port": 0,
            "targets": places,
            "drafters": [drafter],
            "write_timeout_s": plan.write_timeout_s,
        }
        config = folder / "router.yaml"
        config.write_text(yaml.safe_dump(told), encoding="utf-8")
        router = self._start(ROUTER, "router", "--config", str(config))
        self.addresses = (router.address, *router.urls)

    @property
    def names(self) -> Sequence[str]:
        """Of every process, in the order of the report."""
        return (ROUTER, *(name for name in self._running if name != ROUTER))

    def replace(self, name: str) -> None:
        """Kills one and starts another at its address."""
        victim = self._running[name]
        os.kill(victim.pid, signal.SIGKILL)
        assert victim.has_ended(_GRACE_S), f"{name} outlives SIGKILL"
        self._start(name, *self._commands[name], "--address", victim.address)

    def look(self, began_s: float) -> Iterator[Sample]:
        """At every process; one that is being replaced is left out.

        Args:
            began_s: When the load did, on the monotonic clock.
        """
        for name in self.names:
            with suppress(psutil.NoSuchProcess, OSError):
                yield self._sample(name, time.monotonic() - began_s)

    def outcomes(self) -> dict[str, int]:
        """Requests since the start by what became of them, as the router counts."""
        found: dict[str, int] = {}
        for (name, labels), value in _scrape(self._metrics[ROUTER]).items():
            if name == "flyserve_requests_total":
                outcome = dict(labels)["outcome"]
                found[outcome] = found.get(outcome, 0) + int(value)
        return found

    def internal_errors(self) -> list[str]:
        """Last line of every traceback in the logs, with the process that wrote it."""
        found: list[str] = []
        for log in sorted(self._folder.glob("*/*.log")):
            text = log.read_text(encoding="utf-8", errors="replace")
            for block in text.split("Traceback (most recent call last):\n")[1:]:
                last = [line for line in block.splitlines() if line and not line.startswith(" ")]
                found.append(f"{log.parent.name}: {last[0] if last else 'an error that is cut off'}")
        return found

    def _target(self, name: str) -> str:
        model = f"{{{_LANGUAGE}, base_s: 0.02}}"
        return self._start(name, "services.target", "--simulated", model, *_ROOM).address

    def _start(self, name: str, *command: str) -> ServiceProcess:
        folder = self._folder / f"{name}-{time.monotonic_ns()}"
        folder.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        made = service_process((*command, *_TELLING), environment, folder, _START_TIMEOUT_S, _GRACE_S)
        running = self._stack.enter_context(made)
        told = re.search(r"metrics at (\S+)", (folder / f"{command[0]}.log").read_text(encoding="utf-8"))
        assert told is not None, f"{name} does not say where it tells its metrics"
        self._commands[name], self._running[name], self._metrics[name] = command, running, told[1]
        return running

    def _sample(self, name: str, at_s: float) -> Sample:
        process, told = psutil.Process(self._running[name].pid), _scrape(self._metrics[name])

        def figure(*names: str) -> int:
            return int(sum(value for (metric, _), value in told.items() if metric in names))

        with process.oneshot():
            return Sample(
                name,
                at_s,
                process.memory_info().rss / 1e6,
                process.num_fds(),
                process.num_threads(),
                figure("flyserve_event_loop_tasks"),
                figure(*_OPEN),
                figure("flyserve_kv_used_tokens"),
            )


def _scrape(url: str) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(url, timeout=_ANSWER_S) as response:
        families = text_string_to_metric_families(response.read().decode())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }


@contextmanager
def running(plan: Plan) -> Iterator[System]:
    """The processes, which run while the block does; from the main thread only, for its signals.

    Raises:
        ConfigError: A process ended, with its last line.
        NotReady: One did not serve in time.
    """
    with (
        StopSignals() as signals,
        TemporaryDirectory(prefix="flyserve-") as folder,
        ExitStack() as stack,
    ):
        try:
            yield System(stack, Path(folder), plan)
        finally:
            # NOTE: before the stack unwinds: nothing may interrupt the stop.
            signals.ignore()
