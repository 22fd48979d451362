"""Metrics of a router: requests, tokens, rounds, rejections and latencies."""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from flyserve.core.messages import Role
from flyserve.core.response import Statistics
from flyserve.core.round_record import RoundRecord
from flyserve.core.types import FinishReason, Mode, RejectionReason, Verdict
from router.replicas.acceptance import Acceptance, AcceptanceState
from services.common.telemetry.buckets import LONG_SECONDS, SECONDS, TOKENS

E = TypeVar("E", bound=Enum)
M = TypeVar("M", bound=MetricWrapperBase)

UNKNOWN = "unknown"
"""Mode of a request that was rejected before its mode was determined."""

_VLLM_LABELS = ("model_name", "engine")
_ENGINE = "0"
"""vLLM's number of an engine within a process: a router counts for all of its targets together."""
_NUM_POSITIONS = 64
"""Draft positions that are counted one by one; later positions are not counted."""


class RouterMetrics:
    """The metrics of one router.

    Attributes:
        requests: Label `outcome` is `ok` or the kind of error, see `outcome_of`.
        requests_queued: Gauge without a value of its own, like `choices_queued`; the owner of the queue sets
            their functions.
        replicas: One function per role, set by the owner of the replicas.
        by_mode: The metrics of responses, with every label already resolved.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        model_name: str,
        acceptances: Callable[[], Iterable[tuple[str, Acceptance]]],
    ) -> None:
        """Register the metrics.

        `model_name` is a label of those with vLLM's names; `acceptances` returns those of the present
        drafters, by name.
        """
        outcomes = "Finished requests by outcome: ok or the kind of error."
        self.requests = Counter("flyserve_requests_total", outcomes, ("mode", "outcome"), registry=registry)
        self.request_duration = Histogram(
            "flyserve_request_duration_seconds",
            "Time from a request's arrival to its end.",
            ("mode",),
            registry=registry,
            buckets=LONG_SECONDS,
        )
        for mode in (*Mode, UNKNOWN):
            self.requests.labels(mode, "ok")
            self.request_duration.labels(mode)
        arrived = "Requests that have arrived and not ended."
        self.requests_active = Gauge("flyserve_requests_active", arrived, registry=registry)
        waiting = "Requests that wait for admission."
        self.requests_queued = Gauge("flyserve_requests_queued", waiting, registry=registry)
        missing = "Choices of requests that wait for admission: places that the targets lack."
        self.choices_queued = Gauge("flyserve_choices_queued", missing, registry=registry)
        waited = "Time that a request waited for admission."
        self.queue_wait = Histogram(
            "flyserve_queue_wait_seconds", waited, registry=registry, buckets=LONG_SECONDS
        )
        accepting = "Replicas that accept new sequences."
        self.replicas = Gauge("flyserve_replicas", accepting, ("role",), registry=registry)
        for role in (Role.TARGET, Role.DRAFTER):
            self.replicas.labels(role.value)
        families, positions = _Families(registry), PositionCollector(model_name)
        self.by_mode = {mode: ModeMetrics(families, mode.value, positions.lengths[mode]) for mode in Mode}
        registry.register(positions)
        registry.register(AcceptanceCollector(acceptances))


class _Families:
    """Metrics of one registry by name; a metric is declared when one of its labels is first resolved."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._declared: dict[str, Any] = {}

    def counter(self, name: str, text: str, **labels: str) -> Counter:
        return self._resolved(Counter, name, text, labels)

    def counters(self, name: str, text: str, label: str, values: type[E], **labels: str) -> dict[E, Counter]:
        """Return a counter for each value of a label."""
        return {value: self.counter(name, text, **labels, **{label: value.value}) for value in values}

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], **labels: str) -> Histogram:
        return self._resolved(partial(Histogram, buckets=buckets), name, text, labels)

    def _resolved(self, declare: Callable[..., M], name: str, text: str, labels: dict[str, str]) -> M:
        if name not in self._declared:
            self._declared[name] = declare(name, text, tuple(labels), registry=self._registry)
        family: M = self._declared[name]
        return family.labels(**labels) if labels else family


class ModeMetrics:
    """The metrics of one mode's responses; every label is resolved once, here."""

    def __init__(self, families: _Families, mode: str, positions: "_DraftLengths") -> None:
        counter, counters = partial(families.counter, mode=mode), partial(families.counters, mode=mode)
        histogram = partial(families.histogram, mode=mode)
        accepted = "Prompt tokens of accepted requests."
        self.prompt_tokens = counter("flyserve_prompt_tokens_total", accepted)
        finished = "Finished responses by finish reason."
        self._responses = counters("flyserve_responses_total", finished, "finish_reason", FinishReason)
        emitted = "Emitted tokens by verdict."
        self._tokens = counters("flyserve_tokens_total", emitted, "verdict", Verdict)
        goodput = "Tokens of finished responses; their rate is the goodput."
        self._goodput = counter("flyserve_goodput_tokens_total", goodput)
        rounds = "Verification rounds, with a draft or without; in mode draft, steps of the drafter."
        self._rounds = {
            drafted: counter("flyserve_rounds_total", rounds, drafted=str(drafted).lower())
            for drafted in (False, True)
        }
        carried = "Rounds that left a window open for the next draft."
        self._rounds_carried = counter("flyserve_rounds_carried_total", carried)
        missed = "Rounds for which no drafter was available."
        self._rounds_missed = counter("flyserve_rounds_missed_total", missed)
        late = "Rounds without a draft because it was late: the target did not wait for it."
        self._rounds_late = counter("flyserve_rounds_late_total", late)
        dropped = "Drafts of which nothing was verified, because other tokens were decided before they came."
        self._drafts_dropped = counter("flyserve_drafts_dropped_total", dropped)
        rejected = "First rejected mismatch of each round, by reason."
        self._rejections = counters("flyserve_rejections_total", rejected, "reason", RejectionReason)
        self._positions = positions
        lengths = "Draft tokens per round; the sum counts all of them."
        self._draft_length = histogram("flyserve_draft_length_tokens", lengths, TOKENS)
        first = "Time from a request's arrival to its first token."
        self.first_token = histogram("flyserve_time_to_first_token_seconds", first, LONG_SECONDS)
        between = "Mean time between the tokens of a finished response, after the first."
        self._inter_token = histogram("flyserve_inter_token_seconds", between, SECONDS)
        phase = "Time that the router waited for one draft or verification, network and queues included."
        self._draft_seconds, self._verify_seconds = (
            families.histogram("flyserve_round_phase_seconds", phase, SECONDS, phase=name)
            for name in ("draft", "verify")
        )
        parts = "Time of finished responses by part: draft, verify or wire."
        self._seconds = {
            part: families.counter("flyserve_response_seconds_total", parts, part=part)
            for part in ("draft", "verify", "wire")
        }
        sent = "Bytes sent to and received from targets and drafters, for finished responses."
        self._wire_bytes = families.counter("flyserve_wire_bytes_total", sent)
        replayed = "Full-sequence replays during finished responses."
        self._replays = families.counter("flyserve_replays_total", replayed)

    def record_round(self, round: RoundRecord) -> None:
        """Count a round."""
        decision, num_drafts = round.decision, len(round.drafts)
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
            self._positions.count(num_drafts, round.num_accepted)
        if round.answer is not None:
            self._verify_seconds.observe(round.answer_s)
        self._record_drafting(round)

    def _record_drafting(self, round: RoundRecord) -> None:
        """Count the drafts that have arrived, and those that have not."""
        for arrived in round.arrived:
            self._draft_seconds.observe(arrived.waited_s)
            if arrived.is_dropped:
                self._drafts_dropped.inc()
        if round.late_s is not None:
            self._rounds_late.inc()
        if round.is_missed:
            self._rounds_missed.inc()

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

    def __init__(self, model_name: str) -> None:
        self.lengths = {mode: _DraftLengths() for mode in Mode}
        self._model_name = model_name

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
        yield from self._vllm_metrics()

    def _vllm_metrics(self) -> Iterator[CounterMetricFamily]:
        """Yield the same counts, over all modes, with vLLM's names and labels, for tools that read those."""
        totals = {outcome: [0] * _NUM_POSITIONS for outcome in ("drafted", "accepted")}
        for lengths in self.lengths.values():
            for outcome, position, number in lengths.by_position():
                totals[outcome][position] += number
        drafted, accepted = totals["drafted"], totals["accepted"]
        longest = sum(number > 0 for number in drafted)
        for name, text, value in (
            ("drafts", "Rounds with a draft; as flyserve_draft_positions_total.", drafted[0]),
            ("draft_tokens", "Draft tokens; as flyserve_draft_positions_total.", sum(drafted)),
            ("accepted_tokens", "Accepted draft tokens, rescued ones included.", sum(accepted)),
        ):
            metric = CounterMetricFamily(f"vllm:spec_decode_num_{name}", text, labels=_VLLM_LABELS)
            metric.add_metric((self._model_name, _ENGINE), value)
            yield metric
        by_position = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafts whose token at a position was accepted.",
            labels=(*_VLLM_LABELS, "position"),
        )
        for position, number in enumerate(accepted[:longest]):
            by_position.add_metric((self._model_name, _ENGINE, str(position)), number)
        yield by_position


class AcceptanceCollector(Collector):
    """The acceptance of each present drafter, read when Prometheus scrapes."""

    def __init__(self, acceptances: Callable[[], Iterable[tuple[str, Acceptance]]]) -> None:
        self._acceptances = acceptances

    def collect(self) -> Iterator[GaugeMetricFamily]:
        shares = GaugeMetricFamily(
            "flyserve_drafter_acceptance_ratio",
            "Acceptance rate of a drafter: accepted tokens among the judged ones; NaN at first.",
            labels=("drafter",),
        )
        states = GaugeMetricFamily(
            "flyserve_drafter_state",
            "1 for the state of a drafter: usual, rejected (nearly all of its drafts are), or left_out.",
            labels=("drafter", "state"),
        )
        for name, acceptance in self._acceptances():
            shares.add_metric((name,), acceptance.rate)
            for state in AcceptanceState:
                states.add_metric((name, state.value), state is acceptance.state)
        yield shares
        yield states
