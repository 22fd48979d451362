"""The interleaved run: every prompt under every setting, in an order that rotates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.settings import Answer, Decode
from flyserve.bench.comparison import rotated
from flyserve.bench.progress import Advance

_WARM_UP_TOKENS = 32

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt under one setting, once."""

    prompt: int
    repetition: int
    answer: Answer

    @property
    def tokens_per_s(self) -> float:
        return len(self.answer.tokens) / self.answer.seconds


@dataclass(frozen=True, slots=True)
class StreamsRun:
    """So many requests at once under one setting, once."""

    method: str
    streams: int
    tokens_per_s: float


def measure_alone(
    decoders: Mapping[str, Decode],
    prompts: Prompts,
    max_new_tokens: int,
    repetitions: int,
    advance: Advance,
) -> dict[str, list[Run]]:
    """One request at a time: every prompt under every setting, `repetitions` times, after a warm-up.

    Args:
        decoders: By the setting's name.
        prompts: At least one.
        max_new_tokens: Of every response.
        repetitions: Of every prompt under every setting.
        advance: Called after each request; there are `num_alone`.
    """
    names = list(decoders)
    for name in names:
        decoders[name](prompts[0], min(_WARM_UP_TOKENS, max_new_tokens))
        advance()
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for turn in range(repetitions * len(prompts)):
        repetition, prompt = divmod(turn, len(prompts))
        for name in rotated(names, turn):
            runs[name].append(Run(prompt, repetition, decoders[name](prompts[prompt], max_new_tokens)))
            advance()
    return runs


def num_alone(num_settings: int, num_prompts: int, repetitions: int) -> int:
    """Requests of `measure_alone`, warm-up included."""
    return num_settings * (1 + num_prompts * repetitions)


def measure_streams(
    rate: Callable[[str, Prompts], float],
    methods: Sequence[str],
    prompts: Prompts,
    counts: Sequence[int],
    repetitions: int,
    advance: Advance,
) -> list[StreamsRun]:
    """Several requests at once.

    Args:
        rate: From a method and the prompts of one batch to tokens per second.
        methods: Ways of decoding.
        prompts: As many as the largest count; smaller ones take other prompts in every repetition.
        counts: Requests at once.
        repetitions: Of every method and count.
        advance: Called after each batch.
    """
    runs, turn = [], 0
    for repetition in range(repetitions):
        for count in counts:
            batch = rotated(prompts, repetition * count)[:count]
            for method in rotated(methods, turn):
                runs.append(StreamsRun(method, count, rate(method, batch)))
                advance()
            turn += 1
    return runs


def measure_ways(
    seconds: Callable[[str, int], float],
    ways: Sequence[str],
    rows: Sequence[int],
    repetitions: int,
    advance: Advance,
) -> dict[tuple[str, int], list[float]]:
    """Seconds of every way of verifying and number of rows, after a warm-up of each."""
    found: dict[tuple[str, int], list[float]] = {(way, count): [] for count in rows for way in ways}
    for way, count in found:
        seconds(way, count)
    for repetition in range(repetitions):
        for count in rows:
            for way in rotated(ways, repetition):
                found[way, count].append(seconds(way, count))
                advance()
    return found
