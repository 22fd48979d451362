"""Metrics of a target replica."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from fly.messages import Load, Role, Verification
from services.engine.metrics import EngineMetrics


class TargetMetrics(EngineMetrics[Verification]):
    """The metrics of a target."""

    def __init__(self, registry: CollectorRegistry, load: Callable[[], Load]) -> None:
        """Register the metrics; `load` is called when Prometheus scrapes."""
        super().__init__(registry, Role.TARGET, load)
        self._verified = Counter(
            "flyserve_verified_positions_total", "Positions that the target scored.", registry=registry
        )

    def record_step(self, answer: Verification, seconds: float) -> None:
        super().record_step(answer, seconds)
        self._verified.inc(len(answer.choices))
