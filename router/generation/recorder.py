"""The record of one choice: its rounds, for its client, for operators, and for all that learn from them."""

from collections.abc import Iterable, Sequence
from typing import Any

from flyserve.core.evidence import RoundEvidence
from flyserve.core.response import Round, Statistics
from flyserve.core.round_record import DraftOrigin, Learner, RoundRecord
from flyserve.core.types import FinishReason
from router.generation.context import RouterContext
from router.generation.observation import trace_response, trace_round
from router.replicas.connections import Connections
from router.requests.request import PreparedRequest
from services.common.telemetry.tracing import current_span


class Recorder:
    """Records each round of one choice once, and the choice at its end."""

    def __init__(
        self,
        context: RouterContext,
        request: PreparedRequest,
        statistics: Statistics,
        started: float,
        learners: Sequence[Learner],
    ) -> None:
        """Begin a choice of a request that arrived at `started`; its decisions are counted already."""
        self._request = request
        self._statistics = statistics
        self._clock = context.clock
        self._started = started
        self._metrics = context.metrics.by_mode[request.plan.mode]
        self._span = current_span()
        self._learners = learners
        self._rounds: list[Round] = []
        self._counted = (0, 0)

    def record(self, round: RoundRecord) -> None:
        """Record a round that has ended."""
        self._count(round)
        self._metrics.record_round(round)
        for learner in self._learners:
            learner.record(round)
        self._add_round(round, self._evidence(round))

    def take_rounds(self) -> tuple[Round, ...]:
        """Return the rounds since the last call."""
        taken, self._rounds = tuple(self._rounds), []
        return taken

    def finish(self, reason: FinishReason, connections: Iterable[Connections[Any]] = ()) -> Statistics:
        """Record the end of the choice; return its statistics, now complete."""
        statistics = self._statistics
        for each in connections:
            statistics.wire_bytes += each.num_bytes
            statistics.replays += each.replays
        statistics.seed = self._request.seed
        statistics.total_s = self._clock.now() - self._started
        self._metrics.record_response(reason, statistics)
        if self._span is not None:
            trace_response(self._span, self._request, reason, statistics)
        return statistics

    def _count(self, round: RoundRecord) -> None:
        """Add to the statistics what the decision does not show."""
        statistics = self._statistics
        for arrived in round.arrived:
            statistics.count_draft(arrived.draft)
        if round.origin is DraftOrigin.PREDICTION:
            statistics.predicted += len(round.drafts)
            statistics.predicted_accepted += round.num_accepted
        elif round.origin is DraftOrigin.GRAMMAR:
            statistics.forced += len(round.drafts)
            statistics.forced_accepted += round.num_accepted
        # NOTE: a prompt that was scored has been computed for this request, although the cache holds it now.
        if statistics.rounds == 1 and self._request.prompt_logprobs is None:
            statistics.cached_tokens = min(round.times.reused_tokens, len(self._request.prompt_ids))

    def _evidence(self, round: RoundRecord) -> RoundEvidence | None:
        if round.answer is None or not self._request.evidence:
            return None
        return RoundEvidence.of(round.drafts, round.answer)

    def _add_round(self, round: RoundRecord, evidence: RoundEvidence | None) -> None:
        """Add the times of a round, for the client."""
        statistics, (drafted, accepted) = self._statistics, self._counted
        self._counted = (statistics.drafted, statistics.accepted)
        draft_s, verify_s, wire_s = round.seconds()
        statistics.draft_s += draft_s
        statistics.verify_s += verify_s
        statistics.wire_s += wire_s
        end_s = self._clock.now() - self._started
        if not statistics.time_to_first_token_s and round.decision.decided:
            statistics.time_to_first_token_s = end_s
            self._metrics.first_token.observe(end_s)
        record = Round(
            index=statistics.rounds - 1,
            drafted=statistics.drafted - drafted,
            accepted=statistics.accepted - accepted,
            start_s=round.started_s - self._started,
            draft_s=draft_s,
            verify_s=verify_s,
            wire_s=wire_s,
            end_s=end_s,
            evidence=evidence,
        )
        self._rounds.append(record)
        if self._span is not None:
            trace_round(self._span, self._request, record)
