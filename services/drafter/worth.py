"""Whether a question to the sub-drafter pays, and whether its answer is worth waiting for; pure."""

_OVERHEAD_S = 0.00015
"""What a question takes from the thread that drafts, though nobody waits for it."""

_PATIENCE_FORWARDS = 0.75
"""Share of a forward for which an answer is waited for."""

_FIRST_PATIENCE_S = 0.001
"""The same before any forward has been timed."""

_PROBE_EVERY = 13
"""Of what does not pay, one in so many is tried all the same: text and load change. A prime, so that it is
not always the same place of a draft."""

_FOLLOWS = 0.1
"""Weight of the latest observation in every average."""


class Average:
    """An exponential average; the first observation counts in full.

    Attributes:
        value: None before the first.
    """

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, observed: float) -> None:
        self.value = observed if self.value is None else self.value + _FOLLOWS * (observed - self.value)


class _Probes:
    """Lets one in `_PROBE_EVERY` pass."""

    def __init__(self) -> None:
        self._passed_over = 0

    def next(self) -> bool:
        self._passed_over = (self._passed_over + 1) % _PROBE_EVERY
        return self._passed_over == 0


class Worth:
    """What proposals and questions have brought and cost, at one drafter over all its sequences.

    A question pays where the tokens that it supplies save more forward time than it costs, and so does a
    proposal that the drafter makes by itself; an answer is waited for where it comes within a part of a
    forward, as a rule.
    """

    def __init__(self) -> None:
        self._forward_s = Average()
        self._latency_s = Average()
        self._sub_drafter_tokens = Average()
        self._waited_s = Average()
        self._proposal_s = Average()
        self._matched = Average()
        self._asking, self._waiting, self._proposing = _Probes(), _Probes(), _Probes()

    @property
    def patience_s(self) -> float:
        """Longest wait for an answer."""
        forward_s = self._forward_s.value
        return _FIRST_PATIENCE_S if forward_s is None else _PATIENCE_FORWARDS * forward_s

    @property
    def pays(self) -> bool:
        """Questions have saved more than they have cost, or nothing is known yet."""
        if self._sub_drafter_tokens.value is None or self._forward_s.value is None:
            return True
        cost_s = _OVERHEAD_S + (self._waited_s.value or 0.0)
        return self._sub_drafter_tokens.value * self._forward_s.value > cost_s

    @property
    def proposing_pays(self) -> bool:
        """Proposals of the drafter's own have saved more than they have cost, or nothing is known yet."""
        if self._matched.value is None or self._forward_s.value is None or self._proposal_s.value is None:
            return True
        return self._matched.value * self._forward_s.value > self._proposal_s.value

    def proposals(self) -> bool:
        """The next proposal is to be made: it pays, or is a probe."""
        return self.proposing_pays or self._proposing.next()

    def asks(self) -> bool:
        """The next question is to be asked: it pays, or is a probe."""
        return self.pays or self._asking.next()

    def waits(self) -> bool:
        """The answer to the next question is to be waited for, or a probe."""
        latency_s = self._latency_s.value
        return latency_s is None or latency_s <= self.patience_s or self._waiting.next()

    def saw_forwards(self, count: int, seconds: float) -> None:
        """Forwards of the drafter took so long together."""
        if count and seconds > 0:
            self._forward_s.add(seconds / count)

    def saw_proposal(self, seconds: float) -> None:
        """A proposal took so long to make."""
        self._proposal_s.add(seconds)

    def saw_match(self, matched: int) -> None:
        """So many tokens of such a proposal came true."""
        self._matched.add(matched)

    def saw_answer(self, latency_s: float) -> None:
        """An answer came after so long."""
        self._latency_s.add(latency_s)

    def saw_wait(self, waited_s: float, was_in_vain: bool) -> None:
        """An answer was waited for; in vain where patience ended first."""
        self._waited_s.add(waited_s)
        if was_in_vain:
            self._latency_s.add(2 * self.patience_s)

    def saw_use(self, sub_drafter_tokens: int, asked: int) -> None:
        """So many questions supplied so many tokens."""
        if asked:
            self._sub_drafter_tokens.add(sub_drafter_tokens / asked)
