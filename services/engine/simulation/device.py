"""The GPUs that simulated engines compute on, one forward at a time."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from fly.clock import Clock
from fly.messages import Role


class Device:
    """GPUs of one engine, or of a target and its drafter in one event loop: their forwards never overlap.

    The drafter comes first, as in an engine that drafts and verifies by itself: all sequences draft, then the
    target verifies them together. This does not starve the target, because a sequence drafts once per
    verification, unless the drafter drafts ahead.
    """

    def __init__(self, clock: Clock, pause_s: float = 0.0) -> None:
        """Create a free device.

        Args:
            clock: Clock of the engines.
            pause_s: Time for which it must be free before a target takes it. Drafts go through the router to
                the target: without a pause, the first one to arrive would be verified alone.
        """
        self._clock = clock
        self._pause_s = pause_s
        self._is_busy = False
        self._free_s = -math.inf
        self._waiting: dict[asyncio.Event, Role] = {}

    def wait_s(self, role: Role, wake: asyncio.Event) -> float:
        """Return the seconds until an engine may compute; if infinite, `wake` is set when to ask again.

        The engine counts as waiting until it calls `turn` or `leave`.
        """
        self._waiting[wake] = role
        if self._is_busy or (role is Role.TARGET and Role.DRAFTER in self._waiting.values()):
            return math.inf
        pause_s = self._pause_s if role is Role.TARGET else 0.0
        return max(0.0, self._free_s + pause_s - self._clock.now())

    @contextmanager
    def turn(self, wake: asyncio.Event) -> Iterator[None]:
        """Hold the device for the block; `wait_s` has just returned 0.

        NOTE: it is not handed over. The engine that releases it may take it again at once, because the next
        forward of a draft is ready then; those that were woken wait again.
        """
        assert not self._is_busy, "two forwards overlap on one device"
        del self._waiting[wake]
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy, self._free_s = False, self._clock.now()
            self._wake()

    def leave(self, wake: asyncio.Event) -> None:
        """Stop waiting."""
        if self._waiting.pop(wake, None) is not None:
            self._wake()

    def _wake(self) -> None:
        for wake in self._waiting:
            wake.set()
