"""Metrics of a replica that runs a model: its steps, its queue, its KV cache."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from flyserve.core.messages import Load, ModelInfo, Role
from services.common.telemetry.buckets import SECONDS
from services.common.telemetry.instrumented_stream import Answer, StepMetrics

_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_GAUGES = {
    "sequences": ("flyserve_sequences_open", "Open sequences."),
    "queued": ("flyserve_sequences_queued", "Sequences that wait for a place or for KV memory."),
    "kv_used": ("flyserve_kv_used_tokens", "KV cache positions held by open sequences."),
    "kv_cached": (
        "flyserve_kv_cached_tokens",
        "KV cache positions of closed sequences only; they can be reused or evicted.",
    ),
    "kv_capacity": ("flyserve_kv_capacity_tokens", "KV cache positions in total."),
}
_COUNTERS = {
    "prefill_tokens": ("flyserve_prefill_tokens_total", "Tokens computed without an answer."),
    "preemptions": (
        "flyserve_preemptions_total",
        "Sequences whose KV memory was given to others; they are computed again.",
    ),
    "reused_tokens": (
        "flyserve_reused_tokens_total",
        "Tokens whose KV cache entries were shared by another sequence with the same prefix.",
    ),
}


def register_model(registry: CollectorRegistry, info: ModelInfo) -> None:
    """Register the model of a replica, and the engine that runs it."""
    model = Info("flyserve_model", "Model of the replica, and the engine that runs it.", registry=registry)
    model.info(
        {
            "role": info.role.value,
            "model": info.model_id,
            "architecture": info.architecture,
            "engine": info.engine or "builtin",
            "engine_version": info.engine_version,
            "quantization": info.quantization,
        }
    )


class EngineMetrics(StepMetrics[Answer]):
    """The metrics that a target and a drafter have in common."""

    def __init__(self, registry: CollectorRegistry, role: Role, load: Callable[[], Load]) -> None:
        """Register the metrics; `load` is called when Prometheus scrapes."""
        super().__init__(registry, role)
        registry.register(LoadCollector(role, load))
        self._queue = self._histogram(
            "flyserve_step_queue_seconds", "Time from a step's arrival to its first forward.", SECONDS
        )
        self._forward = self._histogram(
            "flyserve_step_forward_seconds",
            "Time of a step in forwards, each of which serves a whole batch.",
            SECONDS,
        )
        self._batch = self._histogram(
            "flyserve_step_batch_sequences", "Largest number of sequences in one forward of a step.", _BATCH
        )

    def record_step(self, answer: Answer, seconds: float) -> None:
        super().record_step(answer, seconds)
        # A step whose whole draft was ready before took part in no forward.
        if answer.times.batch_size:
            self._queue.observe(answer.times.queue_ns * 1e-9)
            self._forward.observe(answer.times.forward_ns * 1e-9)
            self._batch.observe(answer.times.batch_size)


class LoadCollector(Collector):
    """The engine's own counts, read when Prometheus scrapes."""

    def __init__(self, role: Role, load: Callable[[], Load]) -> None:
        self._labels = (role.value,)
        self._load = load

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        load = self._load()
        for family, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for field, (name, text) in metrics.items():
                metric = family(name, text, labels=("role",))
                metric.add_metric(self._labels, getattr(load, field))
                yield metric
