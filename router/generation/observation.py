"""Telemetry of one request: a span, its metrics, and one log line at its end."""

import asyncio
import logging
import re
from types import TracebackType
from typing import Self

from fly.clock import Clock
from fly.errors import FlyServeError
from router.metrics import UNKNOWN, RouterMetrics
from router.requests.request import PreparedRequest
from router.security.callers import current_caller
from services.common.telemetry.logs import FIGURES, name_request
from services.common.telemetry.tracing import Tracer

logger = logging.getLogger(__name__)


class ObservedRequest:
    """Records one request while it is entered; its span is the current one meanwhile."""

    def __init__(self, metrics: RouterMetrics, tracer: Tracer, clock: Clock, traceparent: str) -> None:
        """Start now; `traceparent` is the client's, or empty."""
        self._metrics = metrics
        self._clock = clock
        self._span = tracer.request("generate", traceparent)
        self._started = self._accepted_at = clock.now()
        self._mode = UNKNOWN

    def __enter__(self) -> Self:
        self._span.__enter__()
        self._metrics.requests_active.inc()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome, seconds = outcome_of(error), self._clock.now() - self._started
        self._metrics.requests_active.dec()
        self._metrics.requests.labels(self._mode, outcome).inc()
        self._metrics.request_duration.labels(self._mode).observe(seconds)
        self._span.note(outcome=outcome)
        self._span.__exit__(kind, error, trace)
        figures = {"mode": self._mode, "outcome": outcome, "seconds": seconds}
        key = {"api_key": name} if (name := current_caller().name) else {}
        logger.info("request ended", extra={FIGURES: {**figures, **key}})

    def accepted(self, request: PreparedRequest) -> None:
        """Record that the request is valid; from now on it waits for admission."""
        name_request(request.request_id)
        mode, num_prompt_tokens = request.plan.mode, len(request.prompt_ids)
        self._mode = mode.value
        self._accepted_at = self._clock.now()
        self._metrics.by_mode[mode].prompt_tokens.inc(num_prompt_tokens)
        self._span.note(
            request_id=request.request_id, mode=mode.value, prompt_tokens=num_prompt_tokens, choices=request.n
        )

    def admitted(self) -> None:
        """Record that the request was admitted."""
        waited_s = self._clock.now() - self._accepted_at
        self._metrics.queue_wait.observe(waited_s)
        self._span.note(queue_s=waited_s)


def outcome_of(error: BaseException | None) -> str:
    """Return `ok`, or the kind of an error that a client may see, such as `not_ready`; else `internal`."""
    if error is None:
        return "ok"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, FlyServeError):
        return re.sub("(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    return "internal"
