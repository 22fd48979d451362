"""The amount of measuring, the ways of decoding through the stack, and the pairs with their prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from benchmarks.aligned_pair.recipe import PairRecipe
from benchmarks.harness.client import PLAIN, Prompts, demo_prompts, random_prompts, speculation
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.harness.system import BUILD, DEMO_MODELS
from demo.real.fetch import SMOLLM2, model_folder
from flyserve.core.request import SpeculationParams
from flyserve.core.types import Mode
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer

BASELINE = "transformers generate"
REAL = "smollm2"
DRAFT_LENGTH = 15
LOOKUP_TOKENS = 10
"""The value in transformers' own documentation."""
_EXACT = speculation(Mode.EXACT, DRAFT_LENGTH, sub_drafter=False)
_FLY = speculation(Mode.FLY, DRAFT_LENGTH, sub_drafter=False)
WITH_DRAFTER: Mapping[str, SpeculationParams] = {
    "plain": PLAIN,
    "exact": _EXACT,
    "FLy": _FLY,
    "FLy official": speculation(Mode.FLY, DRAFT_LENGTH, sub_drafter=False, preset="official"),
    "FLy + sub-drafter": speculation(Mode.FLY, DRAFT_LENGTH, sub_drafter=True),
}
WITH_LOOKUP: Mapping[str, SpeculationParams] = {
    "plain": PLAIN,
    "exact with suffix": _EXACT,
    "FLy with suffix": _FLY,
}
"""Ways of decoding through the stack, of a pair with a draft model, and of a model without one."""
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


class Dtype(StrEnum):
    """Compute type of every model."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        repeat: Repetitions of every prompt under every setting.
        dtype: Compute type of every model, in every place.
        prompts: Prompts of every pair.
        max_new_tokens: Limit of every response; those of the demo pair end earlier.
        llama_server: llama.cpp's program `llama-server`, measured with SmolLM2; None leaves it out.
    """

    repeat: Annotated[int, Quick(1)] = 3
    dtype: Dtype = Dtype.BFLOAT16
    prompts: Annotated[int, Field(ge=1, le=300), Quick(2)] = 8
    max_new_tokens: Annotated[int, Field(ge=1, le=512), Quick(32)] = 256
    llama_server: Path | None = None


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
    """A target, its drafter if it has one, and prompts."""

    name: str
    target: Path
    drafter: Path | None
    prompts: Prompts


def load_pair(name: str, num_prompts: int) -> Pair:
    """Return a pair, or the real model; the aligned pair is built if it does not exist yet."""
    from benchmarks.aligned_pair.folders import ensure_pair

    if name == "demo":
        return Pair(name, DEMO_MODELS / "target", DEMO_MODELS / "drafter", demo_prompts(num_prompts))
    if name == REAL:
        folder = model_folder(SMOLLM2)
        return Pair(name, folder, None, real_prompts(folder, num_prompts))
    recipe = PairRecipe()
    folders = ensure_pair(recipe, BUILD / "aligned")
    prompts = random_prompts(range(recipe.vocab_size), num_prompts)
    return Pair(name, folders.target, folders.drafter, prompts)


def real_prompts(folder: Path, count: int) -> Prompts:
    """Return chats that rewrite or extract, as tokens of a model; beyond 16 they repeat."""
    template = ChatTemplate(Tokenizer.load(folder))
    asked = [f"{task}\n\n{text}" for text, task in product(_TEXTS, _TASKS)]
    # Neighbours differ in text and in task: a short run has some of each.
    mixed = [asked[(5 * place) % len(asked)] for place in range(count)]
    return tuple(template.render([{"role": "user", "content": text}], {}) for text in mixed)
