"""Metrics of a router: requests, tokens, rounds, what became of drafts, and how long everything took."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry

from fly.messages import Draft, Role, Verification
from fly.response import Statistics
from fly.types import Decision, FinishReason, Mode, RejectionReason, Verdict
from services.common.telemetry.metrics.families import LONG_SECONDS, SECONDS, TOKENS, Families
from services.common.telemetry.observers import ResponseObserver, RouterObserver

_POSITIONS = 64
"""Draft positions that are told apart; later ones count for none."""


class RouterMetrics(RouterObserver):
    """Records what it is told."""

    def __init__(self, families: Families) -> None:
        """Declares what is told of requests, then what is told of responses, mode by mode."""
        self._num_queued: Callable[[], int] = lambda: 0
        self._replicas: Callable[[], Mapping[Role, int]] = dict
        self._requests = families.counter(
            "flyserve_requests_total",
            "Requests by how they ended: ok or the kind of error.",
            "mode",
            "outcome",
        )
        self._duration = families.histogram(
            "flyserve_request_duration_seconds", "From a request's arrival to its end.", LONG_SECONDS, "mode"
        )
        self._active = families.gauge("flyserve_requests_active", "Requests that have come and are not over.")
        families.read(
            "gauge", "flyserve_requests_queued", "Requests that wait for a place.", self._read_queue
        )
        self._waited = families.histogram(
            "flyserve_queue_wait_seconds", "How long a request waited for its place.", LONG_SECONDS
        )
        self._prompt_tokens = families.counter(
            "flyserve_prompt_tokens_total", "Tokens of accepted prompts.", "mode"
        )
        families.read(
            "gauge", "flyserve_replicas", "Replicas that may be picked.", self._read_replicas, "role"
        )
        declared = _ResponseFamilies(families)
        self._responses = {mode: ResponseMetrics(declared, mode) for mode in Mode}
        declared.positions.extend(metrics.positions for metrics in self._responses.values())

    def watch(self, num_queued: Callable[[], int], replicas: Callable[[], Mapping[Role, int]]) -> None:
        self._num_queued, self._replicas = num_queued, replicas

    def arrived(self) -> None:
        self._active.inc()

    def accepted(self, mode: Mode, num_prompt_tokens: int) -> None:
        self._prompt_tokens.labels(mode.value).inc(num_prompt_tokens)

    def admitted(self, seconds: float) -> None:
        self._waited.observe(seconds)

    def ended(self, mode: str, outcome: str, seconds: float) -> None:
        self._active.dec()
        self._requests.labels(mode, outcome).inc()
        self._duration.labels(mode).observe(seconds)

    def response(self, mode: Mode) -> ResponseObserver:
        return self._responses[mode]

    def _read_queue(self) -> Iterator[tuple[Sequence[str], float]]:
        yield (), self._num_queued()

    def _read_replicas(self) -> Iterator[tuple[Sequence[str], float]]:
        for role, number in self._replicas().items():
            yield (role.value,), number


class _ResponseFamilies:
    """What is told of responses, over all modes."""

    def __init__(self, families: Families) -> None:
        self.positions: list[_Positions] = []
        self.responses = families.counter(
            "flyserve_responses_total", "Finished responses by why they ended.", "mode", "finish_reason"
        )
        self.tokens = families.counter(
            "flyserve_tokens_total", "Emitted tokens by how they came to be.", "mode", "verdict"
        )
        self.goodput = families.counter(
            "flyserve_goodput_tokens_total", "Tokens of finished responses: its rate is the goodput.", "mode"
        )
        self.rounds = families.counter(
            "flyserve_rounds_total", "Verifications, with a draft or without.", "mode", "drafted"
        )
        self.carried = families.counter(
            "flyserve_rounds_carried_total", "Rounds that left a window open for the next draft.", "mode"
        )
        self.missed = families.counter(
            "flyserve_rounds_missed_total", "Rounds that wanted a draft and had none.", "mode"
        )
        self.rejections = families.counter(
            "flyserve_rejections_total", "First rejected mismatch of each round, by reason.", "mode", "reason"
        )
        self.draft_length = families.histogram(
            "flyserve_draft_length_tokens",
            "Draft tokens of one round; its sum is all of them.",
            TOKENS,
            "mode",
        )
        families.read(
            "counter",
            "flyserve_draft_positions_total",
            "Drafts that reached a position, and those whose token there was kept; positions 0 to 63.",
            self._read_positions,
            *("mode", "position", "outcome"),
        )
        self.first_token = families.histogram(
            "flyserve_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            *(LONG_SECONDS, "mode"),
        )
        self.inter_token = families.histogram(
            "flyserve_inter_token_seconds",
            "Mean time between the tokens of a finished response, after the first.",
            *(SECONDS, "mode"),
        )
        self.phase = families.histogram(
            "flyserve_round_phase_seconds",
            "How long a router waited for one draft or verification, wire and queues included.",
            *(SECONDS, "phase"),
        )
        self.spent = families.counter(
            "flyserve_response_seconds_total", "Time of finished responses: draft, verify, wire.", "part"
        )
        self.wire_bytes = families.counter(
            "flyserve_wire_bytes_total", "Sent to and received from the services, for finished responses."
        )
        self.replays = families.counter(
            "flyserve_replays_total", "Times that a finished response's sequence was replayed."
        )

    def _read_positions(self) -> Iterator[tuple[Sequence[str], float]]:
        for positions in self.positions:
            yield from positions.read()


class ResponseMetrics(ResponseObserver):
    """What is told of one mode's responses, with every label resolved beforehand."""

    def __init__(self, families: _ResponseFamilies, mode: Mode) -> None:
        self.positions = _Positions(mode)
        self._responses = {why: families.responses.labels(mode.value, why.value) for why in FinishReason}
        self._tokens = {verdict: families.tokens.labels(mode.value, verdict.value) for verdict in Verdict}
        self._rejections = {why: families.rejections.labels(mode.value, why.value) for why in RejectionReason}
        self._goodput = families.goodput.labels(mode.value)
        self._rounds = {yes: families.rounds.labels(mode.value, str(yes).lower()) for yes in (False, True)}
        self._carried = families.carried.labels(mode.value)
        self._missed = families.missed.labels(mode.value)
        self._draft_length = families.draft_length.labels(mode.value)
        self._first_token = families.first_token.labels(mode.value)
        self._inter_token = families.inter_token.labels(mode.value)
        self._draft, self._verify = (families.phase.labels(phase) for phase in ("draft", "verify"))
        self._spent = {part: families.spent.labels(part) for part in ("draft", "verify", "wire")}
        self._wire_bytes = families.wire_bytes
        self._replays = families.replays

    def drafted(self, draft: Draft, seconds: float) -> None:
        self._draft.observe(seconds)

    def missed_draft(self) -> None:
        self._missed.inc()

    def verified(self, verification: Verification, seconds: float) -> None:
        self._verify.observe(seconds)

    def decided(self, num_drafts: int, num_kept: int, decision: Decision) -> None:
        self._rounds[num_drafts > 0].inc()
        verdicts = [decided.verdict for decided in decision.decided]
        for verdict, tokens in self._tokens.items():
            if number := verdicts.count(verdict):
                tokens.inc(number)
        if decision.rejection is not None:
            self._rejections[decision.rejection].inc()
        if decision.provisional:
            self._carried.inc()
        if num_drafts:
            self._draft_length.observe(num_drafts)
            self.positions.count(num_drafts, num_kept)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def finished(self, reason: FinishReason, statistics: Statistics) -> None:
        self._responses[reason].inc()
        self._goodput.inc(statistics.emitted)
        if statistics.emitted > 1:
            spent_s = statistics.total_s - statistics.time_to_first_token_s
            self._inter_token.observe(spent_s / (statistics.emitted - 1))
        self._spent["draft"].inc(statistics.draft_s)
        self._spent["verify"].inc(statistics.verify_s)
        self._spent["wire"].inc(statistics.wire_s)
        self._wire_bytes.inc(statistics.wire_bytes)
        self._replays.inc(statistics.replays)


class _Positions:
    """How long drafts were and how much of each was kept; added up by position only when it is read."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode.value
        self._by_outcome = {"drafted": [0] * (_POSITIONS + 1), "kept": [0] * (_POSITIONS + 1)}
        self._drafted, self._kept = self._by_outcome.values()

    def count(self, num_drafts: int, num_kept: int) -> None:
        """One draft."""
        self._drafted[min(num_drafts, _POSITIONS)] += 1
        self._kept[min(num_kept, _POSITIONS)] += 1

    def read(self) -> Iterator[tuple[Sequence[str], float]]:
        """Per position that any draft has reached."""
        longest = max((length for length, number in enumerate(self._drafted) if number), default=0)
        for outcome, lengths in self._by_outcome.items():
            for position in range(longest):
                yield (self._mode, str(position), outcome), sum(lengths[position + 1 :])


def router_observer(registry: CollectorRegistry | None) -> RouterObserver:
    """Records in a registry; nobody is told where there is none."""
    return RouterObserver() if registry is None else RouterMetrics(Families(registry))
