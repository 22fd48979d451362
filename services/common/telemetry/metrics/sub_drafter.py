"""Metrics of a sub-drafter that looks up: its guesses and its memory."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from prometheus_client import CollectorRegistry

from fly.messages import Draft, Load, Role, StaleReason
from services.common.telemetry.metrics.families import SECONDS, TOKENS, Families
from services.common.telemetry.observers import StepObserver

_ROLE = Role.SUB_DRAFTER.value
_LOADS = {
    "sequences": ("flyserve_sequences_open", "Open sequences."),
    "kv_used": ("flyserve_memory_used_tokens", "Tokens of finished responses that are remembered."),
    "kv_capacity": ("flyserve_memory_capacity_tokens", "Tokens that can be remembered."),
}


class SubDrafterMetrics(StepObserver[Draft]):
    """What a sub-drafter tells."""

    def __init__(self, families: Families, load: Callable[[], Load]) -> None:
        """Reads the load when somebody scrapes."""
        self._load = load
        for field, (name, help) in _LOADS.items():
            families.read("gauge", name, help, partial(self._read, field), "role")
        stale = families.counter(
            "flyserve_stale_steps_total",
            "Steps whose sequence had to be told anew, by reason.",
            "role",
            "reason",
        )
        self._stale = {reason: stale.labels(_ROLE, reason.value) for reason in StaleReason}
        self._step = families.histogram(
            "flyserve_step_seconds", "From a step's arrival to its answer.", SECONDS, "role"
        ).labels(_ROLE)
        self._guessed = families.histogram(
            "flyserve_guessed_tokens", "Tokens of one guess; its sum is all of them.", TOKENS
        )
        self._passages = families.counter(
            "flyserve_passage_tokens_total", "Tokens of passages that were told to drafters."
        )

    def answered(self, answer: Draft, seconds: float) -> None:
        self._step.observe(seconds)
        self._guessed.observe(len(answer.tokens))
        self._passages.inc(sum(map(len, answer.passages)))

    def stale(self, reason: StaleReason) -> None:
        self._stale[reason].inc()

    def _read(self, field: str) -> Iterator[tuple[Sequence[str], float]]:
        yield (_ROLE,), getattr(self._load(), field)


def sub_drafter_observer(registry: CollectorRegistry | None, load: Callable[[], Load]) -> StepObserver[Draft]:
    """Records in a registry; nobody is told where there is none."""
    return StepObserver() if registry is None else SubDrafterMetrics(Families(registry), load)
