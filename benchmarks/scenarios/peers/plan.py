"""The amount of measuring, the ways of decoding, and the models with their prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from benchmarks.harness.client import Prompts, demo_prompts, ways_by_mode
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.harness.program import Program
from benchmarks.harness.system import DEMO_MODELS
from benchmarks.harness.workloads import draw, renderer
from demo.real.fetch import SMOLLM2, model_folder

BASELINE = "transformers generate"
REAL, DEMO = "smollm2", "demo"
PARTS = {f"{model}-{threads}": (model, threads) for model, threads in product((REAL, DEMO), (1, 2))}
"""Model and threads of each part."""
DRAFT_LENGTH = 15
LOOKUP_TOKENS = 10
"""The value in transformers' own documentation."""
NGRAMS = ("ngram-mod", "ngram-simple")
"""Kinds of llama.cpp's own look-up: its default, and the one that drafts after fewer equal tokens."""
MODES = ways_by_mode(DRAFT_LENGTH)
_TASKS = (
    "Repeat the following text, but change every name to 'Alex'.",
    "Copy all sentences of the following text that contain a number.",
    "Correct the spelling of the following text and change nothing else.",
    "Answer with the first two sentences of the following text.",
)
_TEXTS = (
    "Maria runs a small bakery in Porto. She opens at 6 in the morning and sells 200 loaves a day. Her"
    " brother Paulo delivers the bread by bicycle. On Sundays teh bakery is closed.",
    "The museum opened in 1921. It shows 340 paintings and twelve sculptures. John, the director, plans a"
    " new wing. Visiters pay nothing on the first Monday of the month.",
    "def area(width, height):\n    # Computes the area of an rectangle.\n    result = width * height\n"
    "    return result\n\nprint(area(3, 4))  # John expects 12 here",
    "Dear Ms. Keller, thank you for your order of 25 chairs. We will ship them on 3 May. Please call Tom if"
    " the adress has changed. Kind regards, Anna.",
)


class Kind(StrEnum):
    """Relation of a way's tokens to those that the weights choose one by one."""

    PLAIN = "plain decoding"
    SAME = "drafts, the same text"
    FLY = "drafts, FLy"


class Way(NamedTuple):
    """A way of decoding.

    Attributes:
        bits: Bits of each weight.
        is_ours: FlyServe decodes.
    """

    kind: Kind
    bits: int = 16
    is_ours: bool = False


_OUR_KINDS = dict(zip(MODES, Kind, strict=True))
WAYS: Mapping[str, Way] = {
    BASELINE: Way(Kind.PLAIN),
    "transformers prompt lookup": Way(Kind.SAME),
    "transformers assisted": Way(Kind.SAME),
    "published FLy loop": Way(Kind.FLY),
    "vLLM generate": Way(Kind.PLAIN),
    "vLLM ngram": Way(Kind.SAME),
    "llama.cpp f16": Way(Kind.PLAIN),
    **{f"llama.cpp f16, {ngram}": Way(Kind.SAME) for ngram in NGRAMS},
    **{f"FlyServe {mode}": Way(kind, is_ours=True) for mode, kind in _OUR_KINDS.items()},
    **{f"FlyServe on vLLM {mode}": Way(kind, is_ours=True) for mode, kind in _OUR_KINDS.items()},
    "llama.cpp Q8": Way(Kind.PLAIN, 8),
    **{f"llama.cpp Q8, {ngram}": Way(Kind.SAME, 8) for ngram in NGRAMS},
    **{f"FlyServe Q8 {mode}": Way(kind, 8, is_ours=True) for mode, kind in _OUR_KINDS.items()},
}
"""All ways by name, in the order of the table."""


class Dtype(StrEnum):
    """Compute type of every model."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        repeat: Repetitions of every prompt under every way.
        dtype: Compute type of every model in 16 bits, except llama.cpp's: it has float16.
        prompts: Prompts of every kind.
        max_new_tokens: Limit of every response; those of the demo pair end earlier.
    """

    repeat: Annotated[int, Field(ge=1)] = 1
    dtype: Dtype = Dtype.BFLOAT16
    prompts: Annotated[int, Field(ge=1, le=80), Quick(1)] = 4
    max_new_tokens: Annotated[int, Field(ge=1, le=512), Quick(16)] = 96


class Answer(NamedTuple):
    """One response of another program.

    Attributes:
        tokens: New tokens.
        seconds: Time of the response.
        tau: Tokens per round with a draft; None without drafts, or if the program does not report it.
    """

    tokens: tuple[int, ...]
    seconds: float
    tau: float | None = None


Decode = Callable[[Sequence[int], int], Answer]
"""Function from a prompt and a number of new tokens to an answer."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, its drafter if it has one, the threads of each, and prompts by kind."""

    name: str
    target: Path
    drafter: Path | None
    threads: int
    prompts: Mapping[str, Prompts]


def load_pair(part: str, count: int, source: Program | None) -> Pair:
    """Return the model of a part, with `count` prompts of each kind that is here."""
    name, threads = PARTS[part]
    if name == DEMO:
        folders = DEMO_MODELS / "target", DEMO_MODELS / "drafter"
        return Pair(name, *folders, threads, {"demo problems": demo_prompts(count)})
    folder, prompts = model_folder(SMOLLM2), dict[str, Prompts]()
    if source is not None:
        prompts = {kind: draw(source, kind, folder, count, 0).prompts for kind in ("chat", "code")}
    return Pair(name, folder, None, threads, {**prompts, "edits": edits(folder, count)})


def edits(folder: Path, count: int) -> Prompts:
    """Return chats that rewrite or extract, as tokens of a model; beyond 16 they repeat."""
    asked = [f"{task}\n\n{text}" for text, task in product(_TEXTS, _TASKS)]
    # Neighbours differ in text and in task: a short run has some of each.
    mixed = [asked[(5 * place) % len(asked)] for place in range(count)]
    render = renderer(folder)
    return tuple(render({"messages": [{"role": "user", "content": text}]}) for text in mixed)
