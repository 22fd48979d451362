"""The pairs that are measured, each with its prompts."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.aligned_pair.folders import ensure_pair
from benchmarks.aligned_pair.recipe import PairRecipe
from demo.tasks import load_tasks
from demo.tokenizer import render
from fly.errors import ConfigError
from router.tokenizer import Tokenizer

PAIRS = ("demo", "aligned")
_ROOT = Path(__file__).resolve().parent.parent.parent
_DEMO = _ROOT / "demo" / "models"
_ALIGNED = _ROOT / "build" / "aligned"
_PROMPT_TOKENS = 64
_PROMPT_SEED = 7


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, its drafter, and prompts for both.

    Attributes:
        note: What they are, for the report.
    """

    name: str
    note: str
    target: Path
    drafter: Path
    prompts: tuple[tuple[int, ...], ...]


def load_pair(name: str, num_prompts: int) -> Pair:
    """One of `PAIRS`; the aligned one is made where it is not there yet.

    Raises:
        ConfigError: There is no pair of this name.
    """
    if name == "demo":
        return _demo_pair(num_prompts)
    if name == "aligned":
        return _aligned_pair(num_prompts)
    raise ConfigError(f"--pair: is {name!r}, must be one of {', '.join(PAIRS)}")


def _demo_pair(num_prompts: int) -> Pair:
    tokenizer = Tokenizer.load(_DEMO / "target")
    prompts = tuple(tokenizer.encode(render(task.prompt)) for task in load_tasks(num_prompts))
    note = "the shipped, trained pair on held-out problems; responses end by themselves"
    return Pair("demo", note, _DEMO / "target", _DEMO / "drafter", prompts)


def _aligned_pair(num_prompts: int) -> Pair:
    recipe = PairRecipe()
    folders = ensure_pair(recipe, _ALIGNED)
    sizes = [shape.num_parameters(recipe.vocab_size) / 1e6 for shape in (recipe.target, recipe.drafter)]
    note = (
        f"random weights with tuned agreement, {sizes[0]:.1f}M and {sizes[1]:.1f}M parameters, vocabulary"
        f" {recipe.vocab_size}, noise {recipe.noise:g}, peak {recipe.peak:g}, branch {recipe.branch:g};"
        " its text never repeats, so that looking it up finds nothing"
    )
    prompts = tuple(_random_prompts(recipe.vocab_size, num_prompts))
    return Pair("aligned", note, folders.target, folders.drafter, prompts)


def _random_prompts(vocab_size: int, count: int) -> Iterator[tuple[int, ...]]:
    rng = random.Random(_PROMPT_SEED)
    for _ in range(count):
        yield tuple(rng.choices(range(vocab_size), k=_PROMPT_TOKENS))
