"""Telemetry of one request: a span with an event per round, its metrics, and a log line at its end."""

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from flyserve.core.clock import Clock
from flyserve.core.errors import FlyServeError, InternalError, InvalidRequest, Overloaded
from flyserve.core.response import Round, Statistics
from flyserve.core.types import FinishReason
from router.generation.log_limit import LogLimit
from router.metrics import UNKNOWN, RouterMetrics
from router.requests.request import PreparedRequest
from router.security.callers import current_caller
from services.common.telemetry.logs import FIGURES, name_request
from services.common.telemetry.tracing import Span, Tracer, record_span

logger = logging.getLogger(__name__)


@contextmanager
def observed_request(
    metrics: RouterMetrics, tracer: Tracer | None, clock: Clock, rejection_log: LogLimit, traceparent: str
) -> Iterator["RequestTelemetry"]:
    """Record the block as one request; `traceparent` is the client's, or empty."""
    with record_span(tracer, "generate", traceparent) as span:
        request = RequestTelemetry(metrics, span, clock, rejection_log)
        error: BaseException | None = None
        try:
            yield request
        except BaseException as raised:
            error = raised
            raise
        finally:
            request.ended(outcome_of(error))


class RequestTelemetry:
    """Records the stages of one request."""

    def __init__(
        self, metrics: RouterMetrics, span: Span | None, clock: Clock, rejection_log: LogLimit
    ) -> None:
        """Start now."""
        self._metrics = metrics
        self._rejection_log = rejection_log
        self._span = span
        self._clock = clock
        self._started = self._accepted_at = clock.now()
        self._mode = UNKNOWN
        metrics.requests_active.inc()

    def accepted(self, request: PreparedRequest) -> None:
        """Record that the request is valid; from now on it waits for admission."""
        name_request(request.request_id)
        mode, num_prompt_tokens = request.plan.mode, len(request.prompt_ids)
        self._mode = mode.value
        self._accepted_at = self._clock.now()
        self._metrics.by_mode[mode].prompt_tokens.inc(num_prompt_tokens)
        if self._span is not None:
            self._span.set_attributes(
                {
                    "request_id": request.request_id,
                    "mode": mode.value,
                    "prompt_tokens": num_prompt_tokens,
                    "choices": request.n,
                }
            )

    def admitted(self) -> None:
        """Record that the request was admitted."""
        waited_s = self._clock.now() - self._accepted_at
        self._metrics.queue_wait.observe(waited_s)
        if self._span is not None:
            self._span.set_attribute("queue_s", waited_s)

    def ended(self, outcome: str) -> None:
        """Record the end of the request."""
        seconds = self._clock.now() - self._started
        self._metrics.requests_active.dec()
        self._metrics.requests.labels(self._mode, outcome).inc()
        self._metrics.request_duration.labels(self._mode).observe(seconds)
        if self._span is not None:
            self._span.set_attribute("outcome", outcome)
        is_limited = self._mode == UNKNOWN and outcome in _REJECTED
        unlogged = self._rejection_log.figures() if is_limited else {}
        if unlogged is not None:
            figures = {"mode": self._mode, "outcome": outcome, "seconds": seconds}
            logger.info("request ended", extra={FIGURES: {**figures, **unlogged, **_api_key()}})


def record_rejection(metrics: RouterMetrics, rejection_log: LogLimit, limit: str) -> None:
    """Record a request that `limit`, a quota or the queue, rejects before its prompt is known."""
    outcome = outcome_of(Overloaded(""))
    metrics.requests.labels(UNKNOWN, outcome).inc()
    if (unlogged := rejection_log.figures()) is not None:
        figures = {"outcome": outcome, "limit": limit, **unlogged}
        logger.info("request rejected", extra={FIGURES: {**figures, **_api_key()}})


def _api_key() -> dict[str, str]:
    """Return the name of the caller's API key, where it has one."""
    return {"api_key": name} if (name := current_caller().name) else {}


def trace_round(span: Span, request: PreparedRequest, round: Round) -> None:
    """Add a round to the request's span as an event; the event's time is the end of the round."""
    span.add_event("round", {**_figures(round, "drafted", "accepted"), **_choice(request)})


def trace_response(
    span: Span, request: PreparedRequest, reason: FinishReason, statistics: Statistics
) -> None:
    """Add a finished choice to the request's span as an event, with its totals."""
    figures = _figures(statistics, "rounds", "drafted", "accepted", "replays")
    ending = {"finish_reason": reason.value, "tokens": statistics.emitted}
    span.add_event("response", {**ending, **figures, **_choice(request)})


def _figures(record: Round | Statistics, *names: str) -> dict[str, float]:
    """Return some counts of a round or of all rounds, and their times."""
    return {name: getattr(record, name) for name in (*names, "draft_s", "verify_s", "wire_s")}


def _choice(request: PreparedRequest) -> dict[str, str]:
    """Return the id of the choice, where a request has several."""
    return {"choice": request.request_id} if request.n > 1 else {}


def outcome_of(error: BaseException | None) -> str:
    """Return `ok`, or the kind of an error that a client may see, such as `not_ready`; else `internal`."""
    if error is None:
        return "ok"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, FlyServeError) and not isinstance(error, InternalError):
        return re.sub("(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    return "internal"


_REJECTED = frozenset({outcome_of(Overloaded("")), outcome_of(InvalidRequest())})
"""Outcomes that a client can have at any rate."""
