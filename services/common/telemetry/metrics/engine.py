"""Metrics of a replica that runs a model: its steps, its queue, its KV memory."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from fly.messages import Draft, Load, Role, Verification
from services.common.telemetry.metrics.families import SECONDS, TOKENS, Families
from services.common.telemetry.metrics.steps import Answer, Loads, StepMetrics
from services.common.telemetry.observers import StepObserver

_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LOADS: Loads = {
    "sequences": ("gauge", "flyserve_sequences_open", "Open sequences."),
    "queued": ("gauge", "flyserve_sequences_queued", "Sequences that wait for a place."),
    "kv_used": ("gauge", "flyserve_kv_used_tokens", "KV positions that open sequences hold."),
    "kv_cached": (
        "gauge",
        "flyserve_kv_cached_tokens",
        "KV positions that only closed sequences left behind.",
    ),
    "kv_capacity": ("gauge", "flyserve_kv_capacity_tokens", "KV positions in all."),
    "prefill_tokens": ("counter", "flyserve_prefill_tokens_total", "Tokens computed without an answer."),
    "reused_tokens": (
        "counter",
        "flyserve_reused_tokens_total",
        "Tokens whose KV was taken from another sequence with the same prefix.",
    ),
}


class EngineMetrics(StepMetrics[Answer]):
    """What a target and a drafter have in common."""

    def __init__(self, families: Families, role: Role, load: Callable[[], Load]) -> None:
        """Reads the engine's load when somebody scrapes."""
        super().__init__(families, role, load, _LOADS)
        self._queue = families.histogram(
            "flyserve_step_queue_seconds", "From a step's arrival to its first forward.", SECONDS, "role"
        ).labels(role.value)
        self._forward = families.histogram(
            "flyserve_step_forward_seconds", "A step's time in forwards, the whole batch's.", SECONDS, "role"
        ).labels(role.value)
        self._batch = families.histogram(
            "flyserve_step_batch_sequences", "Most sequences in one forward of a step.", _BATCH, "role"
        ).labels(role.value)

    def answered(self, answer: Answer, seconds: float) -> None:
        super().answered(answer, seconds)
        # A step of which all had been drafted ahead took part in no forward.
        if answer.times.batch_size:
            self._queue.observe(answer.times.queue_ns * 1e-9)
            self._forward.observe(answer.times.forward_ns * 1e-9)
            self._batch.observe(answer.times.batch_size)


class TargetMetrics(EngineMetrics[Verification]):
    """What a target tells."""

    def __init__(self, families: Families, load: Callable[[], Load]) -> None:
        super().__init__(families, Role.TARGET, load)
        self._verified = families.counter(
            "flyserve_verified_positions_total", "Positions that the target has answered for."
        )

    def answered(self, answer: Verification, seconds: float) -> None:
        super().answered(answer, seconds)
        self._verified.inc(len(answer.choices))


class DrafterMetrics(EngineMetrics[Draft]):
    """What a drafter tells, or a sub-drafter that runs a model."""

    def __init__(self, families: Families, role: Role, load: Callable[[], Load]) -> None:
        super().__init__(families, role, load)
        name = role.value
        self._drafted = families.histogram(
            "flyserve_drafted_tokens", "Tokens of one draft; its sum is all of them.", TOKENS, "role"
        ).labels(name)
        self._forwards = families.counter(
            "flyserve_draft_forwards_total", "Forwards of the model, those for answers only.", "role"
        ).labels(name)
        self._supplied = families.counter(
            "flyserve_sub_drafter_tokens_total", "Draft tokens that the sub-drafter supplied.", "role"
        ).labels(name)
        proposals = families.counter(
            "flyserve_proposals_total",
            "Proposals asked of the sub-drafter, and those of no use: late, invalid, low confidence.",
            *("role", "outcome"),
        )
        self._asked, self._late, self._rejected, self._weak = (
            proposals.labels(name, outcome) for outcome in ("requested", "late", "invalid", "low_confidence")
        )
        ahead = families.counter(
            "flyserve_ahead_tokens_total",
            "Tokens drafted before they were asked for: hit where the step confirmed them, else dropped.",
            *("role", "outcome"),
        )
        self._hit, self._dropped = ahead.labels(name, "hit"), ahead.labels(name, "dropped")

    def answered(self, answer: Draft, seconds: float) -> None:
        super().answered(answer, seconds)
        self._drafted.observe(len(answer.tokens))
        self._forwards.inc(answer.forwards)
        self._supplied.inc(answer.sub_drafter_tokens)
        self._asked.inc(answer.proposals.requested)
        self._late.inc(answer.proposals.late)
        self._rejected.inc(answer.proposals.invalid)
        self._weak.inc(answer.proposals.low_confidence)
        self._hit.inc(answer.drafted_ahead)
        self._dropped.inc(answer.dropped_ahead)


def target_observer(
    registry: CollectorRegistry | None, load: Callable[[], Load]
) -> StepObserver[Verification]:
    """Records in a registry; nobody is told where there is none."""
    return StepObserver() if registry is None else TargetMetrics(Families(registry), load)


def drafter_observer(
    registry: CollectorRegistry | None, role: Role, load: Callable[[], Load]
) -> StepObserver[Draft]:
    """Records in a registry; nobody is told where there is none."""
    return StepObserver() if registry is None else DrafterMetrics(Families(registry), role, load)
