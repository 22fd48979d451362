"""Metrics of a router: requests, tokens, rounds, rejections and latencies."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from fly.messages import Role
from fly.response import Statistics
from fly.types import Decision, FinishReason, Mode, RejectionReason, Verdict
from services.common.telemetry.buckets import LONG_SECONDS, SECONDS, TOKENS

UNKNOWN = "unknown"
"""Mode of a request that was rejected before its mode was determined."""

_MODES = tuple(mode.value for mode in Mode)
_NUM_POSITIONS = 64
"""Draft positions that are counted one by one; later positions are not counted."""


class _Families:
    """Metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, labels, registry=self._registry)

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(name, help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, help, labels, registry=self._registry, buckets=buckets)


class RouterMetrics(_Families):
    """The metrics of one router.

    Attributes:
        requests: Label `outcome` is `ok` or the kind of error, see `outcome_of`.
        requests_queued: Gauge without a value of its own; the owner of the queue sets its function.
        replicas: One function per role, set by the owner of the replicas.
        by_mode: The metrics of responses, with the label `mode` already resolved.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        outcomes = "Finished requests by outcome: ok or the kind of error."
        self.requests = self._counter("flyserve_requests_total", outcomes, "mode", "outcome")
        duration = "Time from a request's arrival to its end."
        self.request_duration = self._histogram(
            "flyserve_request_duration_seconds", duration, LONG_SECONDS, "mode"
        )
        for mode in (*_MODES, UNKNOWN):
            self.requests.labels(mode, "ok")
            self.request_duration.labels(mode)
        arrived = "Requests that have arrived and not ended."
        self.requests_active = self._gauge("flyserve_requests_active", arrived)
        self.requests_queued = self._gauge("flyserve_requests_queued", "Requests that wait for admission.")
        self.queue_wait = self._histogram(
            "flyserve_queue_wait_seconds", "Time that a request waited for admission.", LONG_SECONDS
        )
        self.replicas = self._gauge("flyserve_replicas", "Replicas that accept new sequences.", "role")
        for role in (Role.TARGET, Role.DRAFTER):
            self.replicas.labels(role.value)
        families = _ResponseFamilies(registry)
        self.by_mode = {mode: ModeMetrics(families, mode) for mode in Mode}


class _ResponseFamilies(_Families):
    """The metrics of responses, over all modes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.prompt_tokens = self._counter(
            "flyserve_prompt_tokens_total", "Prompt tokens of accepted requests.", "mode"
        )
        self.responses = self._counter(
            "flyserve_responses_total", "Finished responses by finish reason.", "mode", "finish_reason"
        )
        self.tokens = self._counter("flyserve_tokens_total", "Emitted tokens by verdict.", "mode", "verdict")
        self.goodput = self._counter(
            "flyserve_goodput_tokens_total",
            "Tokens of finished responses; their rate is the goodput.",
            "mode",
        )
        self.rounds = self._counter(
            "flyserve_rounds_total", "Verification rounds, with a draft or without.", "mode", "drafted"
        )
        self.rounds_carried = self._counter(
            "flyserve_rounds_carried_total", "Rounds that left a window open for the next draft.", "mode"
        )
        self.rounds_missed = self._counter(
            "flyserve_rounds_missed_total", "Rounds that requested a draft and received none.", "mode"
        )
        self.rejections = self._counter(
            "flyserve_rejections_total", "First rejected mismatch of each round, by reason.", "mode", "reason"
        )
        self.positions = PositionCollector()
        registry.register(self.positions)
        self._declare_lengths_and_times()

    def _declare_lengths_and_times(self) -> None:
        self.draft_length = self._histogram(
            "flyserve_draft_length_tokens",
            "Draft tokens per round; the sum counts all of them.",
            TOKENS,
            "mode",
        )
        self.first_token = self._histogram(
            "flyserve_time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            LONG_SECONDS,
            "mode",
        )
        self.inter_token = self._histogram(
            "flyserve_inter_token_seconds",
            "Mean time between the tokens of a finished response, after the first.",
            SECONDS,
            "mode",
        )
        self.round_phase = self._histogram(
            "flyserve_round_phase_seconds",
            "Time that the router waited for one draft or verification, network and queues included.",
            SECONDS,
            "phase",
        )
        parts = "Time of finished responses by part: draft, verify or wire."
        self.response_seconds = self._counter("flyserve_response_seconds_total", parts, "part")
        self.wire_bytes = self._counter(
            "flyserve_wire_bytes_total",
            "Bytes sent to and received from targets and drafters, for finished responses.",
        )
        self.replays = self._counter(
            "flyserve_replays_total", "Full-sequence replays during finished responses."
        )


class ModeMetrics:
    """The metrics of one mode's responses; every label is resolved once, here."""

    def __init__(self, families: _ResponseFamilies, mode: Mode) -> None:
        name = mode.value
        self.prompt_tokens = families.prompt_tokens.labels(name)
        self.rounds_missed = families.rounds_missed.labels(name)
        self.first_token = families.first_token.labels(name)
        self.draft_seconds = families.round_phase.labels("draft")
        self.verify_seconds = families.round_phase.labels("verify")
        self._responses = {reason: families.responses.labels(name, reason.value) for reason in FinishReason}
        self._tokens = {verdict: families.tokens.labels(name, verdict.value) for verdict in Verdict}
        self._rejections = {
            reason: families.rejections.labels(name, reason.value) for reason in RejectionReason
        }
        self._rounds = {
            drafted: families.rounds.labels(name, str(drafted).lower()) for drafted in (False, True)
        }
        self._rounds_carried = families.rounds_carried.labels(name)
        self._goodput = families.goodput.labels(name)
        self._draft_length = families.draft_length.labels(name)
        self._inter_token = families.inter_token.labels(name)
        self._seconds = {part: families.response_seconds.labels(part) for part in ("draft", "verify", "wire")}
        self._wire_bytes, self._replays = families.wire_bytes, families.replays
        self._positions = families.positions.lengths[mode]

    def record_round(self, num_drafts: int, num_accepted: int, decision: Decision) -> None:
        """Count a round that accepted the first `num_accepted` of `num_drafts` draft tokens."""
        self._rounds[num_drafts > 0].inc()
        verdicts = [decided.verdict for decided in decision.decided]
        for verdict, tokens in self._tokens.items():
            if number := verdicts.count(verdict):
                tokens.inc(number)
        if decision.rejection is not None:
            self._rejections[decision.rejection].inc()
        if decision.provisional:
            self._rounds_carried.inc()
        if num_drafts:
            self._draft_length.observe(num_drafts)
            self._positions.count(num_drafts, num_accepted)

    def record_response(self, reason: FinishReason, statistics: Statistics) -> None:
        """Count a finished response."""
        self._responses[reason].inc()
        self._goodput.inc(statistics.emitted)
        if statistics.emitted > 1:
            decoding_s = statistics.total_s - statistics.time_to_first_token_s
            self._inter_token.observe(decoding_s / (statistics.emitted - 1))
        self._seconds["draft"].inc(statistics.draft_s)
        self._seconds["verify"].inc(statistics.verify_s)
        self._seconds["wire"].inc(statistics.wire_s)
        self._wire_bytes.inc(statistics.wire_bytes)
        self._replays.inc(statistics.replays)


class _DraftLengths:
    """Drafts of one mode, counted by their length and by how many of their tokens were accepted."""

    def __init__(self) -> None:
        self._drafted, self._accepted = [0] * (_NUM_POSITIONS + 1), [0] * (_NUM_POSITIONS + 1)

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """Count one draft."""
        self._drafted[min(num_drafts, _NUM_POSITIONS)] += 1
        self._accepted[min(num_accepted, _NUM_POSITIONS)] += 1

    def by_position(self) -> Iterator[tuple[str, int, int]]:
        """Yield outcome, position and number of drafts, up to the longest draft; position 0 always."""
        longest = max((length for length, number in enumerate(self._drafted) if number), default=1)
        for outcome, numbers in (("drafted", self._drafted), ("accepted", self._accepted)):
            for position in range(longest):
                yield outcome, position, sum(numbers[position + 1 :])


class PositionCollector(Collector):
    """Drafts by position.

    A round only counts two lengths; the sums over positions are computed when Prometheus scrapes.
    """

    def __init__(self) -> None:
        self.lengths = {mode: _DraftLengths() for mode in Mode}

    def collect(self) -> Iterator[CounterMetricFamily]:
        metric = CounterMetricFamily(
            "flyserve_draft_positions_total",
            "Drafts that reached a position (drafted), and those whose token there was accepted;"
            " positions 0 to 63.",
            labels=("mode", "position", "outcome"),
        )
        for mode, lengths in self.lengths.items():
            for outcome, position, number in lengths.by_position():
                metric.add_metric((mode.value, str(position), outcome), number)
        yield metric
