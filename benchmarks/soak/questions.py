"""What the clients ask: every way of decoding, and what no server may take. Pure."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flyserve import Coupling, Mode, SamplingParams, SpeculationParams
from flyserve.options import RequestOptions

_PROMPTS, _SHORTEST, _LONGEST, _SHARED = 48, 4, 400, 16
_FIRST_WORD, _WORDS = 16, 1000
_LENGTHS = (8, 32, 96, 400)
PLAIN, EXACT, FLY = (SpeculationParams(mode=mode) for mode in (Mode.PLAIN, Mode.EXACT, Mode.FLY))
BAD = "bad"


@dataclass(frozen=True, slots=True)
class Question:
    """One request.

    Attributes:
        kind: Its name in the report.
        topic: Questions of one topic have the same answer, as far as each goes; None where it may differ.
    """

    kind: str
    prompt: Sequence[int]
    max_new_tokens: int
    topic: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = EXACT
    options: RequestOptions = field(default_factory=RequestOptions)


def long_winded() -> Question:
    """More bytes than a connection takes before its reader does."""
    return Question("long", (30, 31, 32), 600, speculation=PLAIN, options={"n": 2, "logprobs": 20})


class Questions:
    """Draws one after the other, always the same ones for a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        words = random.Random(0)
        self._prompts = [_prompt(words, number) for number in range(_PROMPTS)]

    def draw(self) -> Question:
        """The next one."""
        (kind,) = self._random.choices(list(_KINDS), [weight for weight, _ in _KINDS.values()])
        number, length = self._random.randrange(_PROMPTS), self._random.choice(_LENGTHS)
        make = _KINDS[kind][1]
        return make(self._random, kind, number, self._prompts[number], length)

    def uniform(self, low: float, high: float) -> float:
        """A number of the same sequence."""
        return self._random.uniform(low, high)

    def choose(self, weights: Mapping[str, int]) -> str:
        """A name, the likelier the more it weighs."""
        return self._random.choices(list(weights), list(weights.values()))[0]


Make = Callable[[random.Random, str, int, Sequence[int], int], Question]


def _prompt(words: random.Random, number: int) -> tuple[int, ...]:
    shared = random.Random(number % 4).choices(range(_FIRST_WORD, _WORDS), k=_SHARED)
    own = words.choices(range(_FIRST_WORD, _WORDS), k=words.randint(_SHORTEST, _LONGEST))
    return (*shared, *own)


def _greedy(speculation: SpeculationParams, is_invariant: bool = True) -> Make:
    def make(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Question:
        topic = f"greedy {number}" if is_invariant else None
        return Question(kind, prompt, length, topic, speculation=speculation)

    return make


def _sampled(speculation: SpeculationParams, coupling: Coupling) -> Make:
    def make(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Question:
        sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=number, coupling=coupling)
        is_invariant = coupling is Coupling.SHARED_NOISE and speculation is not FLY
        topic = f"sampled {number}" if is_invariant else None
        return Question(kind, prompt, length, topic, sampling, speculation)

    return make


def _several(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Question:
    sampling = SamplingParams(temperature=0.8, seed=number)
    return Question(kind, prompt, min(length, 96), None, sampling, options={"n": 3})


def _stopped(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Question:
    return Question(kind, prompt, length, f"greedy {number}", options={"stop": ("the", "7 ", ", ")})


def _ranked(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Question:
    return Question(kind, prompt, length, f"greedy {number}", options={"logprobs": 5})


def _bad(rng: random.Random, kind: str, number: int, prompt: Sequence[int], length: int) -> Question:
    return rng.choice(
        [
            Question(kind, (), length),
            Question(kind, (*prompt, 10**6), length),
            Question(kind, prompt, 10**6),
            Question(kind, prompt, length, sampling=SamplingParams(temperature=-1.0)),
            Question(kind, prompt, length, speculation=SpeculationParams(mode=Mode.FLY, preset="nobody's")),
            Question(kind, prompt, length, options={"n": 10**4}),
            Question(kind, prompt, length, options={"stop": ("x",) * 100}),
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
    "stop strings": (5, _stopped),
    "logprobs": (5, _ranked),
    BAD: (10, _bad),
}
"""How often each is asked, and what it is."""
