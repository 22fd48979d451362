"""What is drafted: three kinds of text, by three models each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.acceleration.plan import Plan
from benchmarks.acceleration.services import Models, model_flags
from benchmarks.acceleration.settings import DEMO, NON_REPEATING, REPEATING
from benchmarks.aligned_pair.folders import ensure_pair
from benchmarks.aligned_pair.recipe import PairRecipe, Shape
from benchmarks.bigram_model import ensure_bigram_model
from benchmarks.paths import BUILD, DEMO_MODELS
from benchmarks.prompts import Prompts, demo_prompts, random_prompts

_RECIPE = PairRecipe(
    target=Shape(384, 1024, 8, 6, 2),
    drafter=Shape(256, 704, 1, 4, 2),
    sub_drafter=Shape(64, 128, 1, 2, 1),
    vocab_size=4096,
)
_PERIOD = 64
WHOLE_RESPONSE = 512


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of text.

    Attributes:
        title: Of its section in the report.
        note: What writes it, for the report.
        make_models: Makes what is not there yet.
        make_prompts: Always the same.
        max_new_tokens: Of every response; those of the demo pair end by themselves before.
        is_remembered: All prompts of a setting share what a sub-drafter remembers; else each is alone.
    """

    title: str
    note: str
    make_models: Callable[[], Models]
    make_prompts: Callable[[], Prompts]
    max_new_tokens: int
    is_remembered: bool


def demo(plan: Plan) -> Workload:
    """The shipped pair on held-out problems."""
    return Workload(
        title="The demo pair",
        note=(
            f"the shipped pair on {plan.demo_prompts} held-out problems; its sub-drafter of engine model is a"
            " bigram model of the corpus"
        ),
        make_models=demo_models,
        make_prompts=partial(demo_prompts, plan.demo_prompts),
        max_new_tokens=WHOLE_RESPONSE,
        is_remembered=True,
    )


def demo_models() -> Models:
    """The shipped pair, and a bigram model of its corpus."""
    return Models(
        target=model_flags(DEMO_MODELS / "target", "bfloat16"),
        drafter=model_flags(DEMO_MODELS / "drafter", "float32"),
        sub_drafter=model_flags(ensure_bigram_model(BUILD / "bigram"), "float32"),
        tokenizer=DEMO_MODELS / "target",
    )


def repeating(plan: Plan) -> Workload:
    """Text that comes again and again."""
    text = f"goes round in {_PERIOD} tokens, in changing order"
    return _aligned("Text that repeats", text, replace(_RECIPE, period=_PERIOD), plan)


def non_repeating(plan: Plan) -> Workload:
    """Text that never comes again."""
    return _aligned("Text that never repeats", "never repeats within a response", _RECIPE, plan)


WORKLOADS: Mapping[str, Callable[[Plan], Workload]] = {
    DEMO: demo,
    REPEATING: repeating,
    NON_REPEATING: non_repeating,
}
"""By the part that measures it."""


def _aligned(title: str, text: str, recipe: PairRecipe, plan: Plan) -> Workload:
    assert recipe.sub_drafter is not None
    shapes = (recipe.target, recipe.drafter, recipe.sub_drafter)
    sizes = ", ".join(f"{shape.num_parameters(recipe.vocab_size) / 1e6:.1f}M" for shape in shapes)
    return Workload(
        title=title,
        note=(
            f"random weights with tuned agreement, {sizes} parameters (target, drafter, sub-drafter of engine"
            f" model), vocabulary {recipe.vocab_size}, whose text {text}; {plan.aligned_prompts} prompts,"
            f" {plan.aligned_tokens} new tokens each"
        ),
        make_models=partial(_aligned_models, recipe),
        make_prompts=partial(random_prompts, recipe.vocab_size, plan.aligned_prompts),
        max_new_tokens=plan.aligned_tokens,
        is_remembered=recipe.period is not None,
    )


def _aligned_models(recipe: PairRecipe) -> Models:
    folders = ensure_pair(recipe, BUILD / f"aligned-{recipe.period or 'endless'}")
    assert folders.sub_drafter is not None
    return Models(
        target=model_flags(folders.target, "bfloat16"),
        drafter=model_flags(folders.drafter, "float32"),
        sub_drafter=model_flags(folders.sub_drafter, "float32"),
        tokenizer=folders.target,
    )
