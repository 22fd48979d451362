"""Metrics of a drafter replica, or of a sub-drafter that runs a model."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

from fly.messages import Draft, Load, Role
from services.common.telemetry.buckets import TOKENS
from services.engine.metrics import EngineMetrics


class DrafterMetrics(EngineMetrics[Draft]):
    """The metrics of a drafter."""

    def __init__(self, registry: CollectorRegistry, role: Role, load: Callable[[], Load]) -> None:
        """Register the metrics; `load` is called when Prometheus scrapes."""
        super().__init__(registry, role, load)
        name = role.value
        self._drafted = Histogram(
            "flyserve_drafted_tokens",
            "Tokens per draft; the sum counts all of them.",
            ("role",),
            registry=registry,
            buckets=TOKENS,
        ).labels(name)
        self._forwards = Counter(
            "flyserve_draft_forwards_total",
            "Forwards of the drafter's model whose result was returned.",
            ("role",),
            registry=registry,
        ).labels(name)
        self._sub_drafter_tokens = Counter(
            "flyserve_sub_drafter_tokens_total",
            "Draft tokens that the sub-drafter supplied.",
            ("role",),
            registry=registry,
        ).labels(name)
        self._declare_outcomes(registry, name)

    def _declare_outcomes(self, registry: CollectorRegistry, role: str) -> None:
        proposals = Counter(
            "flyserve_proposals_total",
            "Proposals requested from the sub-drafter, and unused ones: late, invalid, low confidence.",
            ("role", "outcome"),
            registry=registry,
        )
        outcomes = ("requested", "late", "invalid", "low_confidence")
        self._proposals = {outcome: proposals.labels(role, outcome) for outcome in outcomes}
        ahead = Counter(
            "flyserve_ahead_tokens_total",
            "Tokens drafted before they were requested: hit if the next step confirmed them, else dropped.",
            ("role", "outcome"),
            registry=registry,
        )
        self._hit, self._dropped = ahead.labels(role, "hit"), ahead.labels(role, "dropped")

    def record_step(self, answer: Draft, seconds: float) -> None:
        super().record_step(answer, seconds)
        self._drafted.observe(len(answer.tokens))
        self._forwards.inc(answer.forwards)
        self._sub_drafter_tokens.inc(answer.sub_drafter_tokens)
        for outcome, counter in self._proposals.items():
            counter.inc(getattr(answer.proposals, outcome))
        self._hit.inc(answer.drafted_ahead)
        self._dropped.inc(answer.dropped_ahead)
