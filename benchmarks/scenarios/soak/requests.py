"""The requests of the clients: every way of decoding, and requests that no server may accept. Pure."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import speculation
from benchmarks.harness.command import BasePlan, Quick
from flyserve import Coupling, Mode, SamplingParams, SpeculationParams
from flyserve.requests import RequestOptions

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
        replace_s: Seconds between two kills of a target; 0 for none. Warm-up and load should end as long
            after the last one: both samples at rest are then of processes of one age.
        vanish_s: Seconds between two kills of a client process with open streams.
        write_timeout_s: Seconds after which the router cancels a request whose client reads nothing.
        seed: Seed of the requests.
    """

    warm_up_s: Annotated[float, Quick(2.0)] = 600.0
    load_s: Annotated[float, Field(ge=6), Quick(6.0)] = 1800.0
    clients: int = 24
    think_s: float = 1.0
    sample_s: Annotated[float, Quick(0.5)] = 5.0
    rest_s: float = 30.0
    replace_s: Annotated[float, Quick(2.5)] = 400.0
    vanish_s: Annotated[float, Quick(2.0)] = 20.0
    write_timeout_s: float = 2.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        topic: Requests of one topic have the same response, as far as each goes; "" if it may differ.
    """

    kind: str = ""
    prompt: Sequence[int] = (30, 31, 32)
    max_new_tokens: int = 600
    topic: str = ""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = EXACT
    options: RequestOptions = field(default_factory=RequestOptions)


LONG = Request("long", speculation=PLAIN, options={"n": 2, "logprobs": 20})
"""A request whose response is larger than a connection buffers without a reader."""
_NOISE = SamplingParams(temperature=0.8, top_p=0.95, coupling=Coupling.SHARED_NOISE)
_KINDS: Mapping[str, tuple[int, Request]] = {
    "plain": (15, Request(topic="greedy", speculation=PLAIN)),
    "exact": (20, Request(topic="greedy")),
    "fly": (20, Request(speculation=FLY)),
    "sampled": (10, Request(topic="sampled", sampling=_NOISE)),
    "sampled fly": (5, Request(sampling=_NOISE, speculation=FLY)),
    "rejection": (5, Request(sampling=replace(_NOISE, coupling=Coupling.REJECTION))),
    "three choices": (5, Request(max_new_tokens=96, sampling=_NOISE, options={"n": 3})),
    "stop strings": (5, Request(topic="greedy", options={"stop": ("the", "7 ", ", ")})),
    "logprobs": (5, Request(topic="greedy", options={"logprobs": 5})),
    BAD: (10, Request()),
}
"""The kinds of requests by name, each with its relative frequency."""


class Requests:
    """Draws requests; the same seed gives the same sequence."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        words = random.Random(0)
        self._prompts = [_prompt(words, number) for number in range(_PROMPTS)]

    def draw(self) -> Request:
        """Return the next request."""
        name = self.choose({name: weight for name, (weight, _) in _KINDS.items()})
        number, length = self._random.randrange(_PROMPTS), self._random.choice(_LENGTHS)
        if name == BAD:
            return self._random.choice(_bad_requests(self._prompts[number], length))
        kind = _KINDS[name][1]
        return replace(
            kind,
            kind=name,
            prompt=self._prompts[number],
            max_new_tokens=min(length, kind.max_new_tokens),
            topic=kind.topic and f"{kind.topic} {number}",
            sampling=replace(kind.sampling, seed=number) if kind.sampling.temperature else kind.sampling,
        )

    def uniform(self, low: float, high: float) -> float:
        """Return a number from the same random source."""
        return self._random.uniform(low, high)

    def choose(self, weights: Mapping[str, int]) -> str:
        """Return a name; its probability is proportional to its weight."""
        return self._random.choices(list(weights), list(weights.values()))[0]


def _prompt(words: random.Random, number: int) -> tuple[int, ...]:
    shared = random.Random(number % 4).choices(_WORDS, k=_SHARED)
    own = words.choices(_WORDS, k=words.randint(_SHORTEST, _LONGEST))
    return (*shared, *own)


def _bad_requests(prompt: Sequence[int], length: int) -> list[Request]:
    """Return requests that no server may accept."""
    return [
        Request(BAD, (), length),
        Request(BAD, (*prompt, 10**6), length),
        Request(BAD, prompt, 10**6),
        Request(BAD, prompt, length, sampling=SamplingParams(temperature=-1.0)),
        Request(BAD, prompt, length, speculation=speculation(Mode.FLY, preset="unknown")),
        Request(BAD, prompt, length, options={"n": 10**4}),
        Request(BAD, prompt, length, options={"stop": ("x",) * 100}),
    ]
