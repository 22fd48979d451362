"""The patience of a draft: the time that a round waits for it before the target decodes without it."""

import math

from flyserve.core.ewma import RecentMean
from flyserve.core.round_record import RoundRecord

_ASSUMED_TOKENS = 4.0
_MEMORY_DRAFTS = 16.0


class Patience:
    """The time for which rounds of one response wait for their drafts; pure, times are arguments.

    While a round waits, the target could decode one token per verification. So a wait pays off if it is
    shorter than the verifications that the draft's accepted tokens save. Tokens that were decided before a
    late draft arrived, and that equal its first tokens, count as accepted: they show its quality.
    """

    def __init__(self, factor: float) -> None:
        """Wait `factor` times the time that a draft is expected to save; infinity waits for every draft."""
        self._factor = factor
        self._accepted = RecentMean(_ASSUMED_TOKENS, _MEMORY_DRAFTS)
        self._num_confirmed = 0

    def limit_s(self, verification_s: float, draft_s: float, num_drafts: int) -> float:
        """Return the seconds after its request for which a round waits for a draft.

        Args:
            verification_s: Usual seconds of a verification.
            draft_s: Usual seconds from the request of a draft to its arrival. If a draft usually arrives too
                late, no round waits for one: all drafts arrive during verifications without drafts.
            num_drafts: Requested length of the draft.
        """
        if math.isinf(self._factor):
            return math.inf
        saved_s = self._factor * verification_s * max(1.0, min(num_drafts, self._accepted.value))
        return saved_s if draft_s <= saved_s else 0.0

    def record(self, round: RoundRecord) -> None:
        """Record what drafts were worth: those that were dropped, and the one that was verified."""
        for arrived in round.arrived:
            if arrived.is_dropped:
                self._accepted.add(arrived.num_confirmed)
            elif arrived.draft.tokens:
                self._num_confirmed = arrived.num_confirmed
        if round.drafts and not round.is_free:
            self._accepted.add(self._num_confirmed + round.num_accepted)
