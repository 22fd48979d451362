"""The costs of steps with look-up drafts and without, which the responses at one target share. Pure."""

from collections import defaultdict

from fly.ewma import RecentMean

_MEMORY_STEPS = 16.0
_MEMORY_TOKENS = 64.0
_MEMORY_REFERENCES = 4.0
_MEMORY_DRAFTS = 64.0
REFERENCE_TOKENS = 32
"""Tokens decoded without drafts now and then while drafts pay, to know what decoding without them takes."""
_REFERENCE_SHARE = 0.01
"""Share of the time that these may lose."""
_LEAST_LOSS = 0.05


class SizeCosts:
    """Drafts of about the same number of tokens, of all responses.

    Attributes:
        accepted: Tokens of such a draft that are accepted.
        steps: Seconds of its verification, by those of a step that decodes one token.
        num_verified: Such drafts that were verified.
        num_ignored: Such drafts since the last one that was verified.
    """

    __slots__ = ("accepted", "num_ignored", "num_verified", "steps")

    def __init__(self) -> None:
        self.accepted = RecentMean(0.0, _MEMORY_DRAFTS)
        self.steps = RecentMean(1.0, _MEMORY_DRAFTS)
        self.num_verified = 0
        self.num_ignored = 0


class LookupCosts:
    """Costs and benefits that the responses at one target share.

    Attributes:
        gain_s: Seconds that a request of a draft has saved; negative if it has cost more.
        message_s: Seconds of a round without a draft beside its forwards.
        between_s: Seconds between an answer of the target and the next round.
        forward_s: Seconds of each of its forwards; 0 if none was measured.
    """

    def __init__(self) -> None:
        self.gain_s = RecentMean(0.0, _MEMORY_DRAFTS)
        self._request_s = RecentMean(0.0, _MEMORY_DRAFTS)
        self._gains_s: defaultdict[int, RecentMean] = defaultdict(lambda: RecentMean(0.0, _MEMORY_DRAFTS))
        self._sizes: defaultdict[int, SizeCosts] = defaultdict(SizeCosts)
        self._forward_s = RecentMean(0.0, _MEMORY_TOKENS)
        self._short_s = RecentMean(0.0, _MEMORY_TOKENS)
        self._long_by_short = RecentMean(1.0, _MEMORY_REFERENCES)
        self._message_s = RecentMean(0.0, _MEMORY_STEPS)
        self._between_s = RecentMean(0.0, _MEMORY_STEPS)
        self._credit_s = 0.0
        self._has_reference = False

    @property
    def forward_s(self) -> float:
        return self._forward_s.value

    @property
    def message_s(self) -> float:
        return self._message_s.value

    @property
    def between_s(self) -> float:
        return self._between_s.value

    def of_size(self, num_drafts: int) -> SizeCosts:
        """Return what drafts of about this number of tokens cost and gain."""
        return self._sizes[num_drafts.bit_length()]

    def gain_after(self, num_accepted: int) -> RecentMean:
        """Return the seconds that a request saves after a draft of which about this many were accepted."""
        return self._gains_s[num_accepted.bit_length()]

    def takes_reference(self) -> bool:
        """Return True if it is time to decode some tokens without drafts, to compare."""
        if not self._has_reference:
            return True
        gain_s, spent_s = max(0.0, self.gain_s.value), self._request_s.value
        lost = max(_LEAST_LOSS, gain_s / (gain_s + spent_s) if spent_s else 0.0)
        return self._credit_s > lost * REFERENCE_TOKENS * self.forward_s

    def record_step(self, num_tokens: int, forward_s: float, spent_s: float, is_long: bool) -> None:
        """Record a step without a draft that decoded `num_tokens`; `is_long` if it had as many as usual.

        NOTE: forwards of short steps are slower than those of long ones, by a factor that is measured.
        With it the many short steps keep up with a machine that becomes faster or slower between long ones.
        """
        token_s = forward_s / num_tokens
        if is_long:
            if self._short_s.weight:
                self._long_by_short.add(min(1.0, token_s / self._short_s.value))
            if not self._has_reference:
                self._forward_s, self._has_reference = RecentMean(0.0, _MEMORY_TOKENS), True
            self._credit_s = 0.0
        else:
            self._short_s.add(token_s, num_tokens)
            token_s *= self._long_by_short.value
        self._forward_s.add(token_s, num_tokens)
        self._message_s.add(max(0.0, spent_s + self.between_s - num_tokens * self.forward_s))

    def record_pause(self, seconds: float) -> None:
        """Record the time between the target's answer and the next round: what a round costs the router."""
        self._between_s.add(seconds)

    def record_verification(self, num_drafts: int, spent_s: float) -> None:
        """Record the seconds of a verification of this many drafts."""
        size = self.of_size(num_drafts)
        size.num_verified += 1
        size.num_ignored = 0
        self._credit_s += _REFERENCE_SHARE * spent_s
        if self.forward_s:
            size.steps.add((spent_s + self.between_s) / (self.forward_s + self.message_s))

    def record_request(self, after: int, gain_s: float, spent_s: float) -> None:
        """Record the seconds that the request of a draft has saved, and those spent on it.

        `after` is the number of accepted tokens of the draft before it.
        """
        self.gain_s.add(gain_s)
        self.gain_after(after).add(gain_s)
        self._request_s.add(spent_s)
