"""The pairs that are measured, each with its prompts."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.aligned_pair.folders import ensure_pair
from benchmarks.aligned_pair.recipe import PairRecipe
from benchmarks.paths import BUILD, DEMO_MODELS
from benchmarks.prompts import Prompts, demo_prompts, random_prompts
from fly.errors import ConfigError

PAIRS = ("demo", "aligned")
_ALIGNED = BUILD / "aligned"


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
    prompts: Prompts


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
    note = "the shipped, trained pair on held-out problems; responses end by themselves"
    return Pair("demo", note, DEMO_MODELS / "target", DEMO_MODELS / "drafter", demo_prompts(num_prompts))


def _aligned_pair(num_prompts: int) -> Pair:
    recipe = PairRecipe()
    folders = ensure_pair(recipe, _ALIGNED)
    sizes = [shape.num_parameters(recipe.vocab_size) / 1e6 for shape in (recipe.target, recipe.drafter)]
    note = (
        f"random weights with tuned agreement, {sizes[0]:.1f}M and {sizes[1]:.1f}M parameters, vocabulary"
        f" {recipe.vocab_size}, noise {recipe.noise:g}, peak {recipe.peak:g}, branch {recipe.branch:g};"
        " its text never repeats, so that looking it up finds nothing"
    )
    prompts = random_prompts(recipe.vocab_size, num_prompts)
    return Pair("aligned", note, folders.target, folders.drafter, prompts)
