"""One request as telemetry sees it: a span, a place in the metrics, one line in the log at its end."""

import asyncio
import logging
import re
from types import TracebackType
from typing import Self

from fly.clock import Clock
from fly.errors import FlyServeError
from router.requests.request import PreparedRequest
from router.security.callers import current_caller
from services.common.telemetry.logs import FIGURES, name_request
from services.common.telemetry.observers import RouterObserver
from services.common.telemetry.tracing import Tracer

logger = logging.getLogger(__name__)

_UNKNOWN = "unknown"
"""Mode of a request that was rejected before it had one."""


class ObservedRequest:
    """Tells of one request while it is entered; its span is the current one meanwhile."""

    def __init__(self, observer: RouterObserver, tracer: Tracer, clock: Clock, traceparent: str) -> None:
        """Begins now; `traceparent` is the client's, or empty."""
        self._observer = observer
        self._clock = clock
        self._span = tracer.request("generate", traceparent)
        self._started = self._arrived = clock.now()
        self._mode = _UNKNOWN

    def __enter__(self) -> Self:
        self._span.__enter__()
        self._observer.arrived()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome, seconds = outcome_of(error), self._clock.now() - self._started
        self._observer.ended(self._mode, outcome, seconds)
        self._span.note(outcome=outcome)
        self._span.__exit__(kind, error, trace)
        figures = {"mode": self._mode, "outcome": outcome, "seconds": seconds}
        key = {"api_key": name} if (name := current_caller().name) else {}
        logger.info("request ended", extra={FIGURES: {**figures, **key}})

    def accepted(self, request: PreparedRequest) -> None:
        """It breaks no limit, and waits for its place from now on."""
        name_request(request.request_id)
        mode, num_prompt_tokens = request.plan.mode, len(request.prompt_ids)
        self._mode = mode.value
        self._arrived = self._clock.now()
        self._observer.accepted(mode, num_prompt_tokens)
        self._span.note(
            request_id=request.request_id, mode=mode.value, prompt_tokens=num_prompt_tokens, choices=request.n
        )

    def admitted(self) -> None:
        """It has its place."""
        waited_s = self._clock.now() - self._arrived
        self._observer.admitted(waited_s)
        self._span.note(queue_s=waited_s)


def outcome_of(error: BaseException | None) -> str:
    """`ok`, or the kind of an error that a caller may be told, such as `not_ready`; else `internal`."""
    if error is None:
        return "ok"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, FlyServeError):
        return re.sub("(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    return "internal"
