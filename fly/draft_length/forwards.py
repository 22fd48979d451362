"""The rows of a shared forward, put together from what its sequences are told of it."""

from collections import OrderedDict
from dataclasses import dataclass

from fly.messages import StepTimes

_MAX_OPEN = 8


@dataclass(frozen=True, slots=True)
class SharedForward:
    """A target's forward.

    Attributes:
        rows: Tokens that it computed.
        sequences: That took part.
        seconds: That it took.
    """

    rows: float
    sequences: int
    seconds: float


class SharedForwards:
    """Recognises a forward by its duration in nanoseconds, which all sequences in it are told alike."""

    def __init__(self) -> None:
        self._open: OrderedDict[StepTimes, list[float]] = OrderedDict()

    def add(self, times: StepTimes, rows: float) -> SharedForward | None:
        """Takes in one sequence's rows, infinity where nobody knows; the forward, where enough is told of it.

        Sequences of other routers are never heard of: a forward that waits for them for long is taken to be
        as the part of it that is known, if that is at least half.
        """
        key = StepTimes(0, times.forward_ns, max(1, times.batch_size))
        known = self._open.setdefault(key, [])
        known.append(rows)
        if len(known) >= key.batch_size:
            del self._open[key]
            return _forward(key, known)
        if len(self._open) <= _MAX_OPEN:
            return None
        oldest, known = self._open.popitem(last=False)
        return _forward(oldest, known) if 2 * len(known) >= oldest.batch_size else None


def _forward(key: StepTimes, known: list[float]) -> SharedForward:
    rows = sum(known) / len(known) * key.batch_size
    return SharedForward(rows, key.batch_size, key.forward_ns * 1e-9)
