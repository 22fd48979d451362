"""The cost model of proposals: decide when a request to the sub-drafter, or waiting for it, is profitable."""

from fly.ewma import Ewma
from services.drafter.level_choice import LevelChoice, TrialTurn

_OVERHEAD_S = 0.00015
"""Time that one request costs the drafting thread, even though it does not wait for the response."""

_TIMEOUT_FORWARDS = 0.75
"""Longest wait for a response, as a share of a forward."""

_INITIAL_TIMEOUT_S = 0.001
"""Longest wait before any forward has been timed."""

_PROBE_EVERY = 13
"""One unprofitable action in this many is tried all the same, since text and load change. It is a prime, so
that it does not always fall on the same position of a draft."""

_QUIET_SEQUENCES, _LOOK_EVERY = 8, 4
"""After so many sequences in a row that repeated no other response, one in so many looks for a repeat."""

_LEAST_GAIN = 0.04
"""Gain of rounds, as the logarithm of a factor, for which a sub-drafter is used: its streams, and what it
keeps of finished sequences, cost time that no round shows."""

_LEAST_ANSWERED = 0.05
"""Share of responses with snippets below which few are requested: prompt look-up has none."""

_SHARE = 0.1
"""Weight of the latest observation in every average."""


class _Probes:
    """A counter by which one in `_PROBE_EVERY` calls is a probe."""

    def __init__(self) -> None:
        self._skipped = 0

    def is_due(self) -> bool:
        self._skipped = (self._skipped + 1) % _PROBE_EVERY
        return self._skipped == 0


class SpeculationBenefit:
    """Average gains and costs of proposals and requests, at one drafter over all its sequences; pure.

    A request is profitable if the tokens that it supplies save more forward time than it costs. The same
    holds for a local proposal, which the drafter makes itself. Waiting for a response is profitable if the
    response usually arrives within a part of a forward. Without data, everything counts as profitable.

    Attributes:
        level: Choice to use the sub-drafter at all, by whole rounds: they include what these averages miss,
            such as a CPU that it shares with the drafter.
        is_model: The latest proposal is that of a model, which keeps nothing of other sequences.
    """

    def __init__(self, turn: TrialTurn | None = None) -> None:
        """Create it without data; `turn` is that of the drafter's levels."""
        self.level = LevelChoice(_LEAST_GAIN, turn)
        self.is_model = False
        self._forward_s = Ewma(_SHARE)
        self._latency_s = Ewma(_SHARE)
        self._tokens_per_request = Ewma(_SHARE)
        self._waited_s = Ewma(_SHARE)
        self._local_s = Ewma(_SHARE)
        self._local_matches = Ewma(_SHARE)
        self._answered = Ewma(_SHARE)
        self._fetch_probes = _Probes()
        self._num_quiet = 0
        self._request_probes = _Probes()
        self._wait_probes = _Probes()
        self._local_probes = _Probes()

    @property
    def timeout_s(self) -> float:
        """Longest wait for a response, in seconds."""
        forward_s = self._forward_s.value
        return _INITIAL_TIMEOUT_S if forward_s is None else _TIMEOUT_FORWARDS * forward_s

    @property
    def is_profitable(self) -> bool:
        """Requests have saved more time than they have cost, or there is no data yet."""
        if self._tokens_per_request.value is None or self._forward_s.value is None:
            return True
        cost_s = _OVERHEAD_S + (self._waited_s.value or 0.0)
        return self._tokens_per_request.value * self._forward_s.value > cost_s

    @property
    def is_local_profitable(self) -> bool:
        """Local proposals have saved more time than they have cost, or there is no data yet."""
        if self._local_matches.value is None or self._forward_s.value is None or self._local_s.value is None:
            return True
        return self._local_matches.value * self._forward_s.value > self._local_s.value

    def begin_sequence(self) -> bool:
        """Begin a sequence; return True if it is to look for repeats even where the level does not pay."""
        self._num_quiet += 1
        return self._num_quiet <= _QUIET_SEQUENCES or self._num_quiet % _LOOK_EVERY == 0

    def should_propose(self) -> bool:
        """Return True if the next local proposal is profitable or a probe."""
        return self.is_local_profitable or self._local_probes.is_due()

    def should_fetch(self) -> bool:
        """Return True if the next response is likely to bring snippets, or if the request is a probe."""
        answered = self._answered.value
        return answered is None or answered > _LEAST_ANSWERED or self._fetch_probes.is_due()

    def should_request(self) -> bool:
        """Return True if the next request is profitable or a probe."""
        return self.is_profitable or self._request_probes.is_due()

    def should_wait(self) -> bool:
        """Return True if waiting for the next response is profitable or a probe."""
        latency_s = self._latency_s.value
        return latency_s is None or latency_s <= self.timeout_s or self._wait_probes.is_due()

    def record_forwards(self, count: int, seconds: float) -> None:
        """Record the total duration of some forwards of the drafter."""
        if count and seconds > 0:
            self._forward_s.add(seconds / count)

    def record_local_proposal(self, seconds: float) -> None:
        """Record the time spent on a local proposal."""
        self._local_s.add(seconds)

    def record_local_matches(self, num_tokens: int) -> None:
        """Record how many tokens of a local proposal matched the draft."""
        self._local_matches.add(num_tokens)

    def record_repeat(self, num_tokens: int) -> None:
        """Record a local proposal that repeated another response and was right."""
        self._answered = Ewma(_SHARE)
        self._fetch_probes = _Probes()
        self._num_quiet = 0
        self.record_local_matches(num_tokens)

    def record_response(self, latency_s: float) -> None:
        """Record the time between a request and its response."""
        self._latency_s.add(latency_s)

    def record_snippets(self, number: int) -> None:
        """Record how many snippets a response brought."""
        self._answered.add(float(number > 0))

    def record_wait(self, waited_s: float, timed_out: bool) -> None:
        """Record a wait for a response, which arrived unless the wait timed out."""
        self._waited_s.add(waited_s)
        if timed_out:
            self._latency_s.add(2 * self.timeout_s)

    def record_requests(self, num_requests: int, sub_drafter_tokens: int) -> None:
        """Record how many tokens the requests of one draft supplied."""
        if num_requests:
            self._tokens_per_request.add(sub_drafter_tokens / num_requests)
