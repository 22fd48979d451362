"""What clients saw of their responses within one window of time. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fly.response import Statistics


@dataclass(slots=True)
class Stream:
    """One response as it came.

    Attributes:
        started_s: When it was asked for.
        arrivals: When tokens came, and how many at a time.
        statistics: At its end; None where it was broken off.
    """

    started_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    statistics: Statistics | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """One setting at one level for some seconds.

    Attributes:
        tokens: That came meanwhile.
        seconds: Its length.
        firsts_s: Time to the first token, of responses whose first token came meanwhile.
        gaps: Seconds since the tokens before, and how many came then: everything but first tokens.
        completed: Responses that ended meanwhile.
        drafted: Draft tokens of those.
        rounds: Verifications of those.
    """

    setting: str
    concurrency: int
    repetition: int
    tokens: int
    seconds: float
    firsts_s: tuple[float, ...]
    gaps: tuple[tuple[float, int], ...]
    completed: int
    drafted: int
    rounds: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def cut_window(
    setting: str, concurrency: int, repetition: int, streams: Sequence[Stream], begin_s: float, end_s: float
) -> Window:
    """What of the streams lies in the window from `begin_s` to just before `end_s`."""

    def is_inside(time_s: float) -> bool:
        return begin_s <= time_s < end_s

    answered = [stream for stream in streams if stream.arrivals]
    ended = [
        stream.statistics
        for stream in answered
        if stream.statistics is not None and is_inside(stream.arrivals[-1][0])
    ]
    firsts = ((stream.arrivals[0][0], stream.started_s) for stream in answered)
    return Window(
        setting=setting,
        concurrency=concurrency,
        repetition=repetition,
        tokens=sum(count for stream in answered for time_s, count in stream.arrivals if is_inside(time_s)),
        seconds=end_s - begin_s,
        firsts_s=tuple(_ms(first_s - started_s) for first_s, started_s in firsts if is_inside(first_s)),
        gaps=tuple((gap_s, count) for time_s, gap_s, count in _gaps(answered) if is_inside(time_s)),
        completed=len(ended),
        drafted=sum(statistics.drafted for statistics in ended),
        rounds=sum(statistics.rounds for statistics in ended),
    )


def _gaps(streams: Iterable[Stream]) -> Iterator[tuple[float, float, int]]:
    """When tokens came, how long after those before, and how many."""
    for stream in streams:
        for (before_s, _), (time_s, count) in zip(stream.arrivals, stream.arrivals[1:], strict=False):
            if count:
                yield time_s, _ms(time_s - before_s), count


def _ms(seconds: float) -> float:
    """To a hundredth of a millisecond."""
    return round(seconds, 5)
