"""Acceptance of one drafter's drafts: find a drafter of which nearly all drafts are rejected. Pure."""

import math
from enum import StrEnum

from flyserve.core.ewma import RecentMean

_MEMORY = 64.0
"""Recent responses that count."""
_LEAST = 16.0
"""Responses before a judgement: at the drafter, and for a comparison also at others."""
_WHOLE = 16
"""Judged tokens of a response that counts in full; one with fewer counts in part."""
_FEW = 0.05
"""Acceptance rate below which nearly all drafts are rejected. A wrong model guesses some tokens."""
_ENOUGH = 0.25
"""Acceptance rate from which a drafter is usual again, and from which others draft better."""


class AcceptanceState(StrEnum):
    """Judgement of a drafter's drafts."""

    USUAL = "usual"
    REJECTED = "rejected"
    """Nearly all are rejected, and no other drafter is known to do better on such requests."""
    LEFT_OUT = "left_out"
    """Nearly all are rejected, and other drafters do better on such requests."""


class Acceptance:
    """The acceptance rate of a drafter, and the judgement that follows from it.

    The rate is the share of accepted tokens among those that were judged: of each draft, the tokens up to the
    first rejected one. Each response counts the same, however long it is.

    A hard prompt, a high temperature or a mode can cause rejections as well as a wrong model. So a drafter
    with few accepted drafts is compared: of the requests that are meant for it, a random half goes to other
    drafters. Only if they do better there, it is left out. Then a few random requests still go to it, and
    another few are compared with them: it returns when its drafts are accepted, or when others do no better.

    Attributes:
        state: The judgement.
    """

    def __init__(self) -> None:
        self.state = AcceptanceState.USUAL
        self._own = RecentMean(1.0, _MEMORY)
        self._others = RecentMean(0.0, _MEMORY)

    @property
    def rate(self) -> float:
        """Acceptance rate of the recent responses; NaN if they are too few."""
        is_known = self._own.weight >= _LEAST or self.state is not AcceptanceState.USUAL
        return self._own.value if is_known else math.nan

    def record(self, num_judged: int, num_accepted: int, at_others: bool = False) -> bool:
        """Record the judged tokens of one response, at least one, and the accepted ones of them.

        `at_others` is True for a response in place of which one of this drafter could have been. Return True
        if the state has changed.
        """
        before = self.state
        if at_others and before is AcceptanceState.USUAL:
            return False
        mean = self._others if at_others else self._own
        mean.add(num_accepted / num_judged, min(1.0, num_judged / _WHOLE))
        self.state = self._judged()
        if before is AcceptanceState.USUAL and self.state is not before:
            self._own = RecentMean(self._own.value, _MEMORY)
            self._others = RecentMean(0.0, _MEMORY)
        return self.state is not before

    def _judged(self) -> AcceptanceState:
        own, others, state = self._own, self._others, self.state
        if own.weight < _LEAST:
            return state
        if own.value >= _ENOUGH:
            return AcceptanceState.USUAL
        if state is AcceptanceState.USUAL:
            return AcceptanceState.REJECTED if own.value < _FEW else state
        is_left_out = state is AcceptanceState.LEFT_OUT
        if others.weight < _LEAST or others.value < (_ENOUGH / 2 if is_left_out else _ENOUGH):
            return AcceptanceState.REJECTED
        return AcceptanceState.LEFT_OUT if own.value < _FEW else state

    @property
    def alarm(self) -> str:
        """The state in words; empty if it is usual."""
        if self.state is AcceptanceState.USUAL:
            return ""
        found = f"nearly all of its drafts are rejected (acceptance rate {self._own.value:.1%})"
        others = f"other drafters have {self._others.value:.1%} on such requests"
        if self.state is AcceptanceState.LEFT_OUT:
            return f"{found}, {others}: it is left out, and tried now and then"
        if min(self._own.weight, self._others.weight) >= _LEAST:
            return f"{found}, {others}: the requests may be the cause"
        return f"{found}, no other drafter is compared with it yet"
