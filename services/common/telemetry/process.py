"""All that one process tells of itself, from its host's start to its end."""

import asyncio
import contextlib
import logging

from prometheus_client import CollectorRegistry, Gauge, Info, ProcessCollector

from fly.errors import ConfigError
from fly.version import VERSION
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.exposition import MetricsServer
from services.common.telemetry.tracing import NoTracer, Tracer

logger = logging.getLogger(__name__)

_PORT_POLL_S = 0.2


class Telemetry:
    """Where the parts of a process register their metrics and begin their spans.

    Attributes:
        registry: Of the metrics; None where they are told to nobody.
        tracer: Of the spans.
        metrics_address: host:port of the metrics; "" before the start, and where there are none.
    """

    def __init__(self, config: TelemetryConfig, role: str) -> None:
        """Opens nothing yet but the exporter of traces, where it is asked for."""
        self._config = config
        self._server: MetricsServer | None = None
        self._waiting: asyncio.Task[None] | None = None
        self.registry = None if config.metrics_port is None else _registry(role, config.replica)
        self.tracer = create_tracer(config, role)
        self.metrics_address = ""

    def start(self, interface: str) -> None:
        """Serves the metrics at this interface; from within the process's event loop.

        Raises:
            ConfigError: The port is in use, and it is not to be waited for.
        """
        if self.registry is not None:
            _count_tasks(self.registry, asyncio.get_running_loop())
        try:
            self._serve(interface)
        except ConfigError as error:
            if not self._config.waits_for_port:
                raise
            logger.warning("%s; metrics are told as soon as it can be", error)
            self._waiting = asyncio.create_task(self._serve_when_free(interface), name="metrics port")

    async def close(self) -> None:
        """Ends what was started; spans that are left are sent within a short time."""
        if self._waiting is not None:
            self._waiting.cancel()
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.close)
        if self._config.otlp_endpoint is not None:
            await asyncio.to_thread(self.tracer.close)

    def _serve(self, interface: str) -> None:
        if self.registry is not None and self._config.metrics_port is not None:
            ports = self._config.metrics_port, self._config.metrics_ports
            self._server = MetricsServer(self.registry, interface, *ports)
            self.metrics_address = self._server.address
            logger.info("metrics at http://%s/metrics", self.metrics_address)

    async def _serve_when_free(self, interface: str) -> None:
        while self._server is None:
            await asyncio.sleep(_PORT_POLL_S)
            with contextlib.suppress(ConfigError):
                self._serve(interface)


def silent_telemetry() -> Telemetry:
    """Of a process that tells nothing."""
    return Telemetry(TelemetryConfig(), "")


def _registry(role: str, replica: str) -> CollectorRegistry:
    """With what every process tells: what it is, its CPU time, memory and files."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Info("flyserve_build", "What this process is.", registry=registry)
    build.info({"role": role, "replica": replica, "version": VERSION})
    return registry


def _count_tasks(registry: CollectorRegistry, loop: asyncio.AbstractEventLoop) -> None:
    """Whoever scrapes counts them, in a thread of his own: what is forgotten shows here first."""
    tasks = Gauge("flyserve_event_loop_tasks", "Tasks of the process's event loop.", registry=registry)
    tasks.set_function(lambda: len(asyncio.all_tasks(loop)))


def create_tracer(config: TelemetryConfig, role: str) -> Tracer:
    """The tracer of this process; OpenTelemetry is loaded only where there is a collector."""
    if config.otlp_endpoint is None:
        return NoTracer()
    from services.common.telemetry.otlp import exporting_tracer

    return exporting_tracer(config.otlp_endpoint, config, role)
