"""The caller of the current request, set by the check that accepted it, and the quotas of each caller."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from fly.clock import Clock
from fly.errors import Overloaded
from router.security.keys import ANONYMOUS, Caller, Keys
from services.common.handlers import Check
from services.common.security.access_policy import AccessPolicy
from services.common.security.config import PublicSecurityConfig
from services.common.security.identity import Identity

_caller: ContextVar[Caller] = ContextVar("caller", default=ANONYMOUS)

AUTHORIZATION = "authorization"


def current_caller() -> Caller:
    """Return the caller of this task's request."""
    return _caller.get()


def set_caller(caller: Caller) -> None:
    """Set the caller of this task, and of every task that it starts from now on."""
    _caller.set(caller)


def key_check(keys: Keys) -> Check:
    """Return a check that accepts calls with a valid API key in their metadata."""

    def check(method: str, context: Any) -> None:
        values = [value for name, value in context.invocation_metadata() or () if name == AUTHORIZATION]
        # NOTE: two are rejected: a proxy in front may have checked the other one.
        set_caller(keys.caller(values[0] if len(values) == 1 and isinstance(values[0], str) else ""))

    return check


def public_access_policy(
    config: PublicSecurityConfig, identity: Identity | None, keys: Keys | None
) -> AccessPolicy:
    """Return the policy of the router's gRPC server."""
    wants_certificates = config.tls is not None and config.tls.client_certificates
    credentials = partial(identity.server_credentials, wants_certificates) if identity else None
    return AccessPolicy(
        credentials=credentials, check=key_check(keys) if keys else None, health_port=config.health_port
    )


_RETRY_AFTER_S = 1.0
_MINUTE_S = 60.0


class Quotas:
    """Enforces the limits of every caller."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_once: Counter[str] = Counter()
        self._paid_until_s: dict[str, float] = {}

    @contextmanager
    def counted(self, caller: Caller) -> Iterator[None]:
        """Count one request while the block runs.

        Raise Overloaded if the caller has reached its concurrent requests, or its requests per minute.
        """
        self._check_number(caller)
        self._check_rate(caller)
        self._at_once[caller.name] += 1
        try:
            yield
        finally:
            self._at_once[caller.name] -= 1
            if not self._at_once[caller.name]:
                del self._at_once[caller.name]

    def _check_number(self, caller: Caller) -> None:
        most = caller.max_concurrent
        if most is not None and self._at_once[caller.name] >= most:
            raise Overloaded(
                f"this API key has {most} requests running or queued, its maximum (max_concurrent)",
                _RETRY_AFTER_S,
            )

    def _check_rate(self, caller: Caller) -> None:
        """Check a leaky bucket of one minute: each request occupies an equal share of it."""
        rate = caller.requests_per_minute
        if rate is None:
            return
        now, cost_s = self._clock.now(), _MINUTE_S / rate
        paid_until_s = max(now, self._paid_until_s.get(caller.name, now)) + cost_s
        if (excess_s := paid_until_s - now - _MINUTE_S) > 1e-9:
            raise Overloaded(
                f"this API key may send {rate} requests per minute (requests_per_minute)", excess_s
            )
        self._paid_until_s[caller.name] = paid_until_s
