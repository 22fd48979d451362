"""The interleaved run: every prompt under every setting, in an order that rotates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.load import turns
from benchmarks.scenarios.peers.settings import Answer, Decode
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
        """Tokens per second."""
        return len(self.answer.tokens) / self.answer.seconds


@dataclass(frozen=True, slots=True)
class StreamsRun:
    """Several concurrent requests under one setting, once."""

    method: str
    streams: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class WaysRun:
    """One way of verifying a number of rows, with its seconds in every repetition."""

    dtype: str
    way: str
    rows: int
    seconds: tuple[float, ...]


def measure_alone(
    decoders: Mapping[str, Decode], prompts: Prompts, max_new_tokens: int, repeat: int, advance: Advance
) -> dict[str, list[Run]]:
    """Measure one request at a time: every prompt under every setting, after a warm-up.

    Args:
        decoders: By the setting's name.
        prompts: At least one.
        max_new_tokens: Limit of every response.
        repeat: Repetitions of every prompt under every setting.
        advance: Called after each request; there are `num_alone`.
    """
    for decode in decoders.values():
        decode(prompts[0], min(_WARM_UP_TOKENS, max_new_tokens))
        advance()
    runs: dict[str, list[Run]] = {name: [] for name in decoders}
    for turn, name in turns(tuple(decoders), repeat * len(prompts)):
        repetition, prompt = divmod(turn, len(prompts))
        runs[name].append(Run(prompt, repetition, decoders[name](prompts[prompt], max_new_tokens)))
        advance()
    return runs


def num_alone(num_settings: int, num_prompts: int, repeat: int) -> int:
    """Return the number of requests of `measure_alone`, warm-up included."""
    return num_settings * (1 + num_prompts * repeat)


def measure_streams(
    rate: Callable[[str, Prompts], float],
    methods: Sequence[str],
    prompts: Prompts,
    counts: Sequence[int],
    repeat: int,
    advance: Advance,
) -> list[StreamsRun]:
    """Measure several concurrent requests.

    Args:
        rate: From a method and the prompts of one batch to tokens per second.
        methods: Ways of decoding.
        prompts: As many as the largest count; smaller counts take other prompts in every repetition.
        counts: Numbers of concurrent requests.
        repeat: Repetitions of every method and count.
        advance: Called after each batch.
    """
    runs = []
    for turn, method in turns(methods, repeat * len(counts)):
        repetition, place = divmod(turn, len(counts))
        batch = rotated(prompts, repetition * counts[place])[: counts[place]]
        runs.append(StreamsRun(method, counts[place], rate(method, batch)))
        advance()
    return runs


def measure_ways(
    seconds: Callable[[str, int], float],
    dtype: str,
    ways: Sequence[str],
    rows: Sequence[int],
    repeat: int,
    advance: Advance,
) -> list[WaysRun]:
    """Measure the seconds of every way of verifying and number of rows, after a warm-up of each."""
    found: dict[tuple[str, int], list[float]] = {(way, count): [] for count in rows for way in ways}
    for way, count in found:
        seconds(way, count)
    for repetition in range(repeat):
        for count in rows:
            for way in rotated(ways, repetition):
                found[way, count].append(seconds(way, count))
                advance()
    return [WaysRun(dtype, way, count, tuple(times)) for (way, count), times in found.items()]
