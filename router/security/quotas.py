"""Quotas: the requests of each API key, and the bytes of all bodies, counted before a body is read."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NoReturn

from flyserve.core.clock import Clock
from flyserve.core.errors import InvalidRequest, Overloaded
from router.security.callers import current_caller
from router.security.keys import Caller
from router.security.peers import current_tenant, set_peer
from services.common.handlers import Admit, Context, HoldBytes

_RETRY_AFTER_S = 1.0
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class ByteLimits:
    """Most bytes of bodies whose requests run or wait: of the router, and of one API key."""

    in_all: int
    per_key: int


class Quotas:
    """Enforces the limits of every caller, and those of the bytes that all bodies take."""

    def __init__(
        self, clock: Clock, byte_limits: ByteLimits, on_rejection: Callable[[], object] = lambda: None
    ) -> None:
        """Start with nothing counted; call `on_rejection` for each rejected request."""
        self._clock = clock
        self._byte_limits = byte_limits
        self._on_rejection = on_rejection
        self._at_once: Counter[str] = Counter()
        self._paid_until_s: dict[str, float] = {}
        self._bytes: Counter[str] = Counter()

    @contextmanager
    def admitted(self, caller: Caller, num_bytes: int = 0, tenant: str = "") -> Iterator[HoldBytes]:
        """Count a request, and the bytes of its body that are known so far, while the block runs.

        `tenant` is that of the request. Raise Overloaded if the caller has reached its concurrent requests or
        its requests per minute, or if it, its tenant, or all callers together hold too many bytes.
        """
        tenant = caller.name or tenant
        with _adding(self._bytes, tenant) as add_bytes:
            held = 0

            def hold(number: int) -> None:
                nonlocal held
                self._check_bytes(caller, number)
                if number and not caller.name and self._bytes[tenant] > held:
                    self._check_share(tenant, number)
                add_bytes(number)
                held += number

            def hold_more(number: int) -> None:
                try:
                    hold(number)
                except Overloaded:
                    self._pay(caller, -1)  # it is not served
                    raise

            hold(num_bytes)
            with self._counted(caller, 1):
                yield hold_more

    @contextmanager
    def batch(self, caller: Caller, number: int) -> Iterator[None]:
        """Count the prompts of an admitted request, each as one request, while the block runs.

        Raise InvalidRequest if the caller may never have this number of requests; else as `admitted`.
        """
        for limit in ("max_concurrent", "requests_per_minute"):
            if (most := getattr(caller, limit)) is not None and number > most:
                found = f"has {number} prompts, each of which counts as a request"
                raise InvalidRequest.of("prompt", f"{found}; this API key may have {most} ({limit})")
        with self._counted(caller, number - 1) if number > 1 else nullcontext():
            yield

    @contextmanager
    def _counted(self, caller: Caller, number: int) -> Iterator[None]:
        self._check_number(caller, number)
        self._pay(caller, number)
        with _adding(self._at_once, caller.name) as add:
            add(number)
            yield

    def _check_bytes(self, caller: Caller, number: int) -> None:
        in_all, per_key = self._byte_limits.in_all, self._byte_limits.per_key
        if caller.name and self._bytes[caller.name] + number > per_key:
            held = f"the bodies of this API key's requests may have {per_key} bytes together"
            self._reject(f"{held} (router.max_body_bytes_per_key)")
        if self._bytes.total() + number > in_all:
            self._reject(f"the bodies of all requests may have {in_all} bytes (router.max_body_bytes_in_all)")

    def _check_share(self, tenant: str, number: int) -> None:
        """Leave to others half of the bytes that are free for this tenant, which has other requests."""
        in_all, held = self._byte_limits.in_all, self._bytes[tenant]
        most = (in_all - self._bytes.total() + held) // 2
        if held + number > most:
            found = f"the bodies of one address may have half of the bytes that others leave, now {most}"
            self._reject(f"{found} (router.max_body_bytes_in_all)")

    def _check_number(self, caller: Caller, number: int) -> None:
        most = caller.max_concurrent
        if most is not None and self._at_once[caller.name] + number > most:
            self._reject(f"this API key may have {most} requests running or queued (max_concurrent)")

    def _pay(self, caller: Caller, number: int) -> None:
        """Fill a leaky bucket of one minute: each request occupies an equal share of it."""
        rate = caller.requests_per_minute
        if rate is None:
            return
        now, cost_s = self._clock.now(), number * _MINUTE_S / rate
        paid_until_s = max(now, self._paid_until_s.get(caller.name, now)) + cost_s
        if (excess_s := paid_until_s - now - _MINUTE_S) > 1e-9:
            found = f"this API key may send {rate} requests per minute (requests_per_minute)"
            self._reject(found, excess_s)
        self._paid_until_s[caller.name] = paid_until_s

    def _reject(self, message: str, retry_after_s: float = _RETRY_AFTER_S) -> NoReturn:
        self._on_rejection()
        raise Overloaded(message, retry_after_s)


def call_quotas(quotas: Quotas, service: str) -> Admit:
    """Return a block that counts each call of a service, except `Info`, and the bytes of its request."""

    def admit(method: str, context: Context) -> AbstractContextManager[HoldBytes]:
        set_peer(context.peer())
        if method.startswith(f"/{service}/") and not method.endswith("/Info"):
            return quotas.admitted(current_caller(), tenant=current_tenant())
        return nullcontext(lambda num_bytes: None)

    return admit


@contextmanager
def _adding(counts: Counter[str], name: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds to a count; subtract everything at the end of the block."""
    added = 0

    def add(number: int) -> None:
        nonlocal added
        added += number
        counts[name] += number

    try:
        yield add
    finally:
        counts[name] -= added
        if not counts[name]:
            del counts[name]
