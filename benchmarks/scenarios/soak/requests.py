"""The requests of the clients: every way of decoding, and requests that no server may accept. Pure."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import speculation
from benchmarks.harness.command import BasePlan, Quick
from flyserve import Coupling, Mode, SamplingParams, SpeculationParams
from flyserve.core import RequestOptions

_PROMPTS, _SHORTEST, _LONGEST, _SHARED = 48, 4, 400, 16
_WORDS = range(16, 1000)
_LENGTHS = (8, 32, 96, 400)
PLAIN, EXACT, FLY = (speculation(mode) for mode in (Mode.PLAIN, Mode.EXACT, Mode.FLY))
BAD = "bad"


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """A warm-up, a rest, the load, a rest.

    Attributes:
        warm_up_s: Seconds of the same load before the first rest, in which caches fill and threads start.
        load_s: Seconds of the load.
        clients: Clients that send one request after the other.
        think_s: Longest pause of a client between two requests.
        sample_s: Seconds between two samples of every process.
        rest_s: Seconds within which nothing may be open any more after the load.
        replace_s: Seconds between two kills of a target; 0 for none.
        vanish_s: Seconds between two kills of a client process with open streams.
        write_timeout_s: Seconds after which the router cancels a request whose client reads nothing.
        seed: Seed of the requests.
    """

    warm_up_s: Annotated[float, Quick(4.0)] = 600.0
    load_s: Annotated[float, Field(ge=6), Quick(10.0)] = 1800.0
    clients: int = 24
    think_s: float = 1.0
    sample_s: Annotated[float, Quick(0.5)] = 5.0
    rest_s: float = 30.0
    replace_s: Annotated[float, Quick(4.0)] = 300.0
    vanish_s: Annotated[float, Quick(3.0)] = 20.0
    write_timeout_s: float = 2.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        kind: Its name in the report.
        topic: Requests of one topic have the same response, as far as each goes; None if it may differ.
    """

    kind: str
    prompt: Sequence[int]
    max_new_tokens: int
    topic: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = EXACT
    options: RequestOptions = field(default_factory=RequestOptions)


def long_request() -> Request:
    """Return a request whose response is larger than a connection buffers without a reader."""
    return Request("long", (30, 31, 32), 600, speculation=PLAIN, options={"n": 2, "logprobs": 20})


class Requests:
    """Draws requests; the same seed gives the same sequence."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        words = random.Random(0)
        self._prompts = [_prompt(words, number) for number in range(_PROMPTS)]

    def draw(self) -> Request:
        """Return the next request."""
        kind = self.choose({name: weight for name, (weight, _) in _KINDS.items()})
        number, length = self._random.randrange(_PROMPTS), self._random.choice(_LENGTHS)
        make = _KINDS[kind][1]
        return make(self._random, kind, number, self._prompts[number], length)

    def uniform(self, low: float, high: float) -> float:
        """Return a number from the same random source."""
        return self._random.uniform(low, high)

    def choose(self, weights: Mapping[str, int]) -> str:
        """Return a name; its probability is proportional to its weight."""
        return self._random.choices(list(weights), list(weights.values()))[0]


Make = Callable[[random.Random, str, int, Sequence[int], int], Request]
"""Function from a random source, a kind, the prompt's number, the prompt and a length to a request."""


def _prompt(words: random.Random, number: int) -> tuple[int, ...]:
    shared = random.Random(number % 4).choices(_WORDS, k=_SHARED)
    own = words.choices(_WORDS, k=words.randint(_SHORTEST, _LONGEST))
    return (*shared, *own)


def _greedy(way: SpeculationParams, is_invariant: bool = True) -> Make:
    def make(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Request:
        topic = f"greedy {number}" if is_invariant else None
        return Request(kind, prompt, length, topic, speculation=way)

    return make


def _sampled(way: SpeculationParams, coupling: Coupling) -> Make:
    def make(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Request:
        sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=number, coupling=coupling)
        is_invariant = coupling is Coupling.SHARED_NOISE and way is not FLY
        topic = f"sampled {number}" if is_invariant else None
        return Request(kind, prompt, length, topic, sampling, way)

    return make


def _several(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Request:
    sampling = SamplingParams(temperature=0.8, seed=number)
    return Request(kind, prompt, min(length, 96), None, sampling, options={"n": 3})


def _with_options(options: RequestOptions) -> Make:
    def make(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Request:
        return Request(kind, prompt, length, f"greedy {number}", options=options)

    return make


def _bad(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Request:
    return rng.choice(
        [
            Request(kind, (), length),
            Request(kind, (*prompt, 10**6), length),
            Request(kind, prompt, 10**6),
            Request(kind, prompt, length, sampling=SamplingParams(temperature=-1.0)),
            Request(kind, prompt, length, speculation=speculation(Mode.FLY, preset="unknown")),
            Request(kind, prompt, length, options={"n": 10**4}),
            Request(kind, prompt, length, options={"stop": ("x",) * 100}),
        ]
    )


_KINDS: Mapping[str, tuple[int, Make]] = {
    "plain": (15, _greedy(PLAIN)),
    "exact": (20, _greedy(EXACT)),
    "fly": (20, _greedy(FLY, is_invariant=False)),
    "sampled": (10, _sampled(EXACT, Coupling.SHARED_NOISE)),
    "sampled fly": (5, _sampled(FLY, Coupling.SHARED_NOISE)),
    "rejection": (5, _sampled(EXACT, Coupling.REJECTION)),
    "three choices": (5, _several),
    "stop strings": (5, _with_options({"stop": ("the", "7 ", ", ")})),
    "logprobs": (5, _with_options({"logprobs": 5})),
    BAD: (10, _bad),
}
"""The kinds of requests, each with its relative frequency."""
