"""Metrics of a sub-drafter that looks up: its guesses and its memory."""

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
        "flyserve_memory_used_tokens",
        "Tokens of finished responses that are remembered.",
    ),
    "kv_capacity": ("gauge", "flyserve_memory_capacity_tokens", "Tokens that can be remembered."),
}


class SubDrafterMetrics(StepMetrics[Draft]):
    """What a sub-drafter tells."""

    def __init__(self, families: Families, load: Callable[[], Load]) -> None:
        """Reads the load when somebody scrapes."""
        super().__init__(families, Role.SUB_DRAFTER, load, _LOADS)
        self._guessed = families.histogram(
            "flyserve_guessed_tokens", "Tokens of one guess; its sum is all of them.", TOKENS
        )
        self._passages = families.counter(
            "flyserve_passage_tokens_total", "Tokens of passages that were told to drafters."
        )

    def answered(self, answer: Draft, seconds: float) -> None:
        super().answered(answer, seconds)
        self._guessed.observe(len(answer.tokens))
        self._passages.inc(sum(map(len, answer.passages)))


def sub_drafter_observer(registry: CollectorRegistry | None, load: Callable[[], Load]) -> StepObserver[Draft]:
    """Records in a registry; nobody is told where there is none."""
    return StepObserver() if registry is None else SubDrafterMetrics(Families(registry), load)
