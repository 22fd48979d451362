"""Metrics of a sub-drafter that looks up: its proposals and its memory."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from fly.messages import Draft, Load, Role
from services.common.telemetry.metrics.families import TOKENS, Families
from services.common.telemetry.metrics.steps import Loads, StepMetrics
from services.common.telemetry.observers import StepObserver

_LOADS: Loads = {
    "sequences": ("gauge", "flyserve_sequences_open", "Open sequences."),
    "kv_used": (
        "gauge",
        "flyserve_response_cache_used_tokens",
        "Tokens of finished responses that are remembered.",
    ),
    "kv_capacity": ("gauge", "flyserve_response_cache_capacity_tokens", "Tokens that can be remembered."),
}


class SubDrafterMetrics(StepMetrics[Draft]):
    """What a sub-drafter tells."""

    def __init__(self, families: Families, load: Callable[[], Load]) -> None:
        """Reads the load when somebody scrapes."""
        super().__init__(families, Role.SUB_DRAFTER, load, _LOADS)
        self._proposed = families.histogram(
            "flyserve_proposed_tokens", "Tokens of one proposal; its sum is all of them.", TOKENS
        )
        self._snippets = families.counter(
            "flyserve_snippet_tokens_total", "Tokens of snippets that were told to drafters."
        )

    def answered(self, answer: Draft, seconds: float) -> None:
        super().answered(answer, seconds)
        self._proposed.observe(len(answer.tokens))
        self._snippets.inc(sum(map(len, answer.snippets)))


def sub_drafter_observer(registry: CollectorRegistry | None, load: Callable[[], Load]) -> StepObserver[Draft]:
    """Records in a registry; nobody is told where there is none."""
    return StepObserver() if registry is None else SubDrafterMetrics(Families(registry), load)
