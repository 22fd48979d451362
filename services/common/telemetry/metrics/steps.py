"""What every service tells: its steps, and its load as it is when somebody scrapes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar

from fly.messages import Draft, Load, Role, Verification
from fly.sequence import StaleReason
from services.common.telemetry.metrics.families import SECONDS, Families
from services.common.telemetry.observers import StepObserver

Loads = Mapping[str, tuple[Literal["counter", "gauge"], str, str]]
"""Kind, name and help of what is told of a load, by the field of `Load`."""


Answer = TypeVar("Answer", bound=Verification | Draft)


class StepMetrics(StepObserver[Answer]):
    """Of one service."""

    def __init__(self, families: Families, role: Role, load: Callable[[], Load], loads: Loads) -> None:
        """Declares what every service has, and what this one says of its load."""
        self._role = role.value
        self._load = load
        for field, (kind, name, help) in loads.items():
            families.read(kind, name, help, partial(self._read, field), "role")
        stale = families.counter(
            "flyserve_stale_steps_total",
            "Steps whose sequence had to be replayed, by reason.",
            *("role", "reason"),
        )
        self._stale = {reason: stale.labels(self._role, reason.value) for reason in StaleReason}
        self._seconds = families.histogram(
            "flyserve_step_seconds", "From a step's arrival to its answer.", SECONDS, "role"
        ).labels(self._role)

    def answered(self, answer: Answer, seconds: float) -> None:
        self._seconds.observe(seconds)

    def stale(self, reason: StaleReason) -> None:
        self._stale[reason].inc()

    def _read(self, field: str) -> Iterator[tuple[Sequence[str], float]]:
        yield (self._role,), getattr(self._load(), field)
