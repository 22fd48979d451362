"""Telemetry of one process, from its host's start to its end."""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, Info, ProcessCollector, disable_created_metrics

from flyserve.core.errors import ConfigError
from flyserve.core.version import VERSION
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.metrics_server import MetricsServer

if TYPE_CHECKING:
    from services.common.telemetry.otlp import SpanExport

logger = logging.getLogger(__name__)

_PORT_POLL_S = 0.2


class Telemetry:
    """The registry and the tracer in which the parts of a process record their work.

    Attributes:
        registry: Metrics; always recorded, and served only if a port is configured.
        tracer: Starts the spans of this process; None without a collector.
        metrics_address: host:port of the metrics; "" before `start`, and without a port.
    """

    def __init__(self, config: TelemetryConfig | None = None, role: str = "") -> None:
        """Open nothing yet, except the exporter of spans if a collector is configured.

        Without a configuration it serves no metrics and sends no spans.
        """
        self._config = config = config or TelemetryConfig()
        self._server: MetricsServer | None = None
        self._waiting: asyncio.Task[None] | None = None
        self.registry, self._num_tasks = process_metrics(role, config.replica, config.deployment)
        self._spans: SpanExport | None = None
        if config.otlp_endpoint is not None:
            # OpenTelemetry is loaded only where there is a collector.
            from services.common.telemetry.otlp import export_spans

            self._spans = export_spans(config.otlp_endpoint, config, role)
        self.tracer = None if self._spans is None else self._spans.tracer
        self.metrics_address = ""

    def start(self, interface: str) -> None:
        """Serve the metrics at this interface; call it from the process's event loop.

        Raises:
            ConfigError: The port is in use, and the configuration does not say to wait for it.
        """
        loop = asyncio.get_running_loop()
        self._num_tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
        try:
            self._serve(interface)
        except ConfigError as error:
            if not self._config.waits_for_port:
                raise
            logger.warning("%s; metrics are served as soon as the port is free", error)
            self._waiting = asyncio.create_task(self._serve_when_free(interface), name="metrics port")

    async def close(self) -> None:
        """Stop serving, and send the spans that are left within a short time."""
        if self._waiting is not None:
            self._waiting.cancel()
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.close)
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    def _serve(self, interface: str) -> None:
        if self._config.metrics_port is not None:
            ports = self._config.metrics_port, self._config.metrics_ports
            self._server = MetricsServer(self.registry, interface, *ports)
            self.metrics_address = self._server.address
            logger.info("metrics at http://%s/metrics", self.metrics_address)

    async def _serve_when_free(self, interface: str) -> None:
        while self._server is None:
            await asyncio.sleep(_PORT_POLL_S)
            with contextlib.suppress(ConfigError):
                self._serve(interface)


def process_metrics(role: str, replica: str, deployment: str = "") -> tuple[CollectorRegistry, Gauge]:
    """Return a new registry with the metrics of every process, and the gauge of its event loop's tasks."""
    # NOTE: this is global to the process. Otherwise each series has a second one with its time of creation.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    named = "Role, replica, deployment and version of the process."
    build = Info("flyserve_build", named, registry=registry)
    build.info({"role": role, "replica": replica, "deployment": deployment, "version": VERSION})
    # Evaluated at scrape time, on the scraper's thread.
    tasks = Gauge(
        "flyserve_event_loop_tasks",
        "Tasks of the event loop; a value that keeps rising indicates leaked tasks.",
        registry=registry,
    )
    return registry, tasks
