"""Simulated clients of one drafter and one target on a virtual clock; a forward takes all queued requests."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from fly.draft_length.policy import DraftLength
from fly.messages import Draft, Load, StepTimes, Verification

_RESPONSE_ROUNDS = 50
"""Average number of rounds per response; each client then starts its next response."""
_PAUSE_S = 0.03
_CATCH_UP_S = 0.00005
"""Time of the drafter per token that it has not processed yet."""


@dataclass(frozen=True)
class Costs:
    """Seconds of a target's forward by rows, of a drafter's by sequences, and of a message."""

    target_s: Callable[[int], float]
    drafter_s: Callable[[int], float]
    wire_s: float = 0.0003


class SimulationClock:
    """A clock at the time of the current event."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class Caller:
    """One client, which sends one request after the other."""

    policy: DraftLength
    position: int = 0
    behind: int = 0
    length: int = 0
    left: int = 0
    asked_s: float = 0.0
    arrived_s: float = 0.0
    started_s: float = 0.0
    forward_s: float = 0.0
    batch: int = 0
    rows: int = 0

    def times(self) -> StepTimes:
        queue_s = self.started_s - self.arrived_s
        return StepTimes(int(queue_s * 1e9), int(self.forward_s * 1e9), self.batch, self.rows)


@dataclass
class RoundLog:
    """Rounds in the order of their end.

    Attributes:
        ends_s: End of each round.
        lengths: Draft length of each round.
        callers: Id of the client of each round.
    """

    ends_s: list[float]
    lengths: list[int]
    callers: list[int]

    def goodput(self, agreement: float, first: int, last: int) -> float:
        """Return the expected tokens per second of these rounds; only the lengths are random."""
        tokens = sum(expected_tokens(agreement, length) for length in self.lengths[first:last])
        return tokens / (self.ends_s[last - 1] - self.ends_s[first - 1])

    def changes(self, first: int, last: int) -> float:
        """Return the share of these rounds whose length differs from the same client's previous round."""
        before: dict[int, int] = {}
        changes = 0
        for caller, length in zip(self.callers[first:last], self.lengths[first:last], strict=True):
            changes += before.get(caller, length) != length
            before[caller] = length
        return changes / (last - first)


@cache
def expected_tokens(agreement: float, length: int) -> float:
    """Return the expected tokens of a round whose drafts are each accepted with probability `agreement`."""
    return sum(agreement**power for power in range(length + 1))


class RoundSimulation:
    """Simulates rounds.

    Attributes:
        agreement: Probability that the target accepts a draft token; may be changed between calls of `run`.
        log: The rounds so far.
    """

    def __init__(
        self,
        costs: Costs,
        clock: SimulationClock,
        callers: int,
        make_policy: Callable[[], DraftLength],
    ) -> None:
        self.agreement = 0.8
        self.log = RoundLog([], [], [])
        self._costs = costs
        self._clock = clock
        self._make_policy = make_policy
        self._random = random.Random(0)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._callers = [Caller(make_policy()) for _ in range(callers)]
        self._to_draft: list[Caller] = []
        self._to_verify: list[Caller] = []
        self._is_drafting = self._is_verifying = False
        for caller in self._callers:
            self._open(caller)

    def run(self, num_rounds: int) -> None:
        """Run until the log has `num_rounds` rounds."""
        while len(self.log.lengths) < num_rounds:
            time_s = self._clock.time_s = self._events[0][0]
            while self._events and self._events[0][0] == time_s:
                heapq.heappop(self._events)[2]()
            self._draft()
            self._verify()

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._clock.time_s + seconds, next(self._order), event))

    def _open(self, caller: Caller) -> None:
        caller.policy, caller.position, caller.behind = self._make_policy(), 10, 10
        self._after(self._random.uniform(0.0, _PAUSE_S), lambda: self._begin(caller))

    def _begin(self, caller: Caller) -> None:
        caller.length = caller.left = caller.policy.choose()
        self._send(caller)

    def _send(self, caller: Caller) -> None:
        def arrive() -> None:
            caller.arrived_s = self._clock.time_s
            (self._to_draft if caller.left else self._to_verify).append(caller)

        caller.asked_s = self._clock.time_s
        caller.batch, caller.rows, caller.forward_s = 0, 0, 0.0
        self._after(self._costs.wire_s * self._random.uniform(0.5, 1.5), arrive)

    def _draft(self) -> None:
        if self._is_drafting or not self._to_draft:
            return
        batch, self._to_draft, self._is_drafting = self._to_draft, [], True
        missed = sum(caller.behind for caller in batch)
        seconds = self._costs.drafter_s(len(batch)) + missed * _CATCH_UP_S
        self._start(batch, len(batch) + missed, seconds)
        self._after(seconds, lambda: self._drafted(batch))

    def _verify(self) -> None:
        if self._is_verifying or not self._to_verify:
            return
        batch, self._to_verify, self._is_verifying = self._to_verify, [], True
        rows = sum(caller.length + 1 for caller in batch)
        seconds = self._costs.target_s(rows)
        self._start(batch, rows, seconds)
        self._after(seconds, lambda: self._verified(batch))

    def _start(self, batch: list[Caller], rows: int, seconds: float) -> None:
        for caller in batch:
            if not caller.batch:
                caller.started_s = self._clock.time_s
            caller.batch, caller.rows = max(caller.batch, len(batch)), max(caller.rows, rows)
            caller.forward_s += seconds

    def _drafted(self, batch: list[Caller]) -> None:
        self._is_drafting = False
        load = Load(sequences=len(self._callers))
        for caller in batch:
            caller.left -= 1
            caller.behind = 0
            if caller.left:
                self._to_draft.append(caller)
                continue
            draft = Draft(0, (0,) * caller.length, caller.length, times=caller.times(), load=load)
            caller.policy.record_draft(draft, self._clock.time_s - caller.asked_s)
            self._send(caller)

    def _verified(self, batch: list[Caller]) -> None:
        self._is_verifying = False
        load = Load(sequences=len(self._callers))
        for caller in batch:
            zeros = (0,) * (caller.length + 1)
            answer = Verification(0, zeros, zeros, times=caller.times(), load=load)
            caller.policy.record_verification(answer, self._clock.time_s - caller.asked_s)
            self._decide(caller)
            if self._random.random() * _RESPONSE_ROUNDS < 1:
                self._open(caller)
            else:
                self._begin(caller)

    def _decide(self, caller: Caller) -> None:
        start, kept = caller.position, 0
        while kept < caller.length and self._random.random() < self.agreement:
            kept += 1
        caller.position += kept + 1
        caller.behind += 0 if caller.length else 1
        caller.policy.record_round(start, caller.length, caller.position, is_open=False)
        self.log.ends_s.append(self._clock.time_s)
        self.log.lengths.append(caller.length)
        self.log.callers.append(id(caller))
