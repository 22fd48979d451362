"""Metrics of a sub-drafter that looks up: its proposals and its cache of responses."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fly.messages import Draft, Load, Role
from services.common.telemetry.buckets import TOKENS
from services.common.telemetry.instrumented_stream import StepMetrics


class SubDrafterMetrics(StepMetrics[Draft]):
    """The metrics of a sub-drafter."""

    def __init__(self, registry: CollectorRegistry, load: Callable[[], Load]) -> None:
        """Register the metrics; `load` is called when Prometheus scrapes."""
        super().__init__(registry, Role.SUB_DRAFTER)

        def gauge(name: str, help: str, read: Callable[[Load], int]) -> None:
            metric = Gauge(name, help, ("role",), registry=registry)
            metric.labels(Role.SUB_DRAFTER.value).set_function(lambda: read(load()))

        gauge("flyserve_sequences_open", "Open sequences.", lambda load: load.sequences)
        gauge(
            "flyserve_response_cache_used_tokens",
            "Tokens of finished responses in the cache.",
            lambda load: load.kv_used,
        )
        gauge(
            "flyserve_response_cache_capacity_tokens",
            "Tokens of finished responses that the cache can hold.",
            lambda load: load.kv_capacity,
        )
        self._proposed = Histogram(
            "flyserve_proposed_tokens",
            "Tokens per proposal; the sum counts all of them.",
            registry=registry,
            buckets=TOKENS,
        )
        self._snippets = Counter(
            "flyserve_snippet_tokens_total", "Tokens of snippets sent to drafters.", registry=registry
        )

    def record_step(self, answer: Draft, seconds: float) -> None:
        super().record_step(answer, seconds)
        self._proposed.observe(len(answer.tokens))
        self._snippets.inc(sum(map(len, answer.snippets)))
