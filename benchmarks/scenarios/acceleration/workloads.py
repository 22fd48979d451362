"""The ways of drafting, the models and texts they are compared on, and the processes that serve them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from pathlib import Path

from benchmarks.aligned_pair.recipe import PairRecipe, Shape
from benchmarks.harness.client import speculation
from benchmarks.harness.system import (
    BUILD,
    DEMO_MODELS,
    Flags,
    Services,
    model_flags,
    running_services,
    simulated_flags,
    sub_drafter_command,
)
from fly.request import SpeculationParams
from fly.types import Mode
from flyserve.cli.terminal import messages
from flyserve.client import Client

DRAFT_LENGTH = 15
DEMO, PASSES, PREDICTED, REPEATING, NON_REPEATING, AHEAD = (
    "demo",
    "second-pass",
    "predicted",
    "repeating",
    "non-repeating",
    "draft-ahead",
)
"""The parts of the benchmark."""
TITLES = {
    DEMO: "The demo pair",
    PASSES: "A second pass",
    PREDICTED: "A predicted response",
    REPEATING: "Text that repeats",
    NON_REPEATING: "Text that never repeats",
    AHEAD: "Drafting ahead, simulated",
}
WHOLE_RESPONSE = 512
AGREEMENT = 0.9
"""Probability that the simulated drafter proposes the target's choice."""
TARGET_S, DRAFTER_S = 0.024, 0.003
"""Seconds of a simulated forward of any size: a draft of 8 takes as long as a verification."""
VOCABULARY = 1024
RECIPE = PairRecipe(
    target=Shape(384, 1024, 8, 6, 2),
    drafter=Shape(256, 704, 1, 4, 2),
    sub_drafter=Shape(64, 128, 1, 2, 1),
    vocab_size=4096,
)
PERIOD = 64


class SubDrafting(StrEnum):
    """The sub-drafter of a deployment."""

    OFF = "off"
    NGRAM = "ngram"
    SUFFIX = "suffix"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Drafting:
    """A deployment's way of drafting.

    Attributes:
        sub_drafting: Its sub-drafter.
        is_ahead: It drafts while the target verifies.
    """

    sub_drafting: SubDrafting
    is_ahead: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """A deployment's way of drafting, with the draft length policy of its requests."""

    drafting: Drafting
    is_goodput: bool = False

    @property
    def name(self) -> str:
        """Name in the tables."""
        parts = (self.drafting.sub_drafting.value, "ahead", "goodput")
        return " + ".join(
            part
            for part, is_on in zip(parts, (True, self.drafting.is_ahead, self.is_goodput), strict=True)
            if is_on
        )

    @property
    def speculation(self) -> SpeculationParams:
        """SpeculationParams parameters of a request."""
        return speculation(Mode.FLY, DRAFT_LENGTH, self.is_goodput)


DRAFTINGS = tuple(Drafting(*each) for each in product(SubDrafting, (False, True)))
SETTINGS = tuple(Setting(*each) for each in product(DRAFTINGS, (False, True)))
BASELINE = Setting(Drafting(SubDrafting.OFF))
SUFFIX = Setting(Drafting(SubDrafting.SUFFIX))


def ahead_name(length: int, is_ahead: bool) -> str:
    """Return the name of a draft length with drafting ahead, or without."""
    return f"drafts of {length}{', ahead' if is_ahead else ''}"


@dataclass(frozen=True, slots=True)
class Models:
    """The models of the tiers, as flags of their commands.

    Attributes:
        sub_drafter: Returns the model of the sub-drafter engine `model`, built if needed; None without one.
        tokenizer: Model folder of the routers' tokenizer.
    """

    target: Flags
    drafter: Flags
    sub_drafter: Callable[[], Flags] | None
    tokenizer: Path


def demo_models() -> Models:
    """Return the shipped pair and a bigram model of its corpus."""

    def bigram_model() -> Flags:
        from benchmarks.aligned_pair.bigram_model import ensure_bigram_model

        return model_flags(ensure_bigram_model(BUILD / "bigram"), "float32")

    return Models(
        target=model_flags(DEMO_MODELS / "target", "bfloat16"),
        drafter=model_flags(DEMO_MODELS / "drafter", "float32"),
        sub_drafter=bigram_model,
        tokenizer=DEMO_MODELS / "target",
    )


def simulated_models() -> Models:
    """Return a simulated target and its drafter; any tokenizer fits their ids."""
    costs = {"vocab_size": VOCABULARY, "per_token_s": 0.0, "per_token_above_s": 0.0}
    return Models(
        target=simulated_flags({"base_s": TARGET_S, **costs}, 8, 8192),
        drafter=simulated_flags({"base_s": DRAFTER_S, "agreement": AGREEMENT, **costs}, 8, 8192),
        sub_drafter=None,
        tokenizer=DEMO_MODELS / "target",
    )


def aligned_recipe(part: str) -> PairRecipe:
    """Return the pair whose text repeats, or the one whose text never does."""
    return replace(RECIPE, period=PERIOD) if part == REPEATING else RECIPE


def aligned_models(recipe: PairRecipe) -> Models:
    """Return a pair and its sub-drafter; they are built if they do not exist yet."""
    from benchmarks.aligned_pair.folders import ensure_pair

    folders = ensure_pair(recipe, BUILD / f"aligned-{recipe.period or 'endless'}")
    sub_drafter = folders.sub_drafter
    assert sub_drafter is not None
    return Models(
        target=model_flags(folders.target, "bfloat16"),
        drafter=model_flags(folders.drafter, "float32"),
        sub_drafter=lambda: model_flags(sub_drafter, "float32"),
        tokenizer=folders.target,
    )


@contextmanager
def running_drafters(models: Models, draftings: Sequence[Drafting]) -> Iterator[dict[Drafting, Client]]:
    """Yield a client for each way of drafting: one target, and a drafter and a router for each way.

    A replica without requests is idle and costs nothing, so that all ways can be measured in turn.
    """
    with running_services() as services, ExitStack() as stack:
        with messages().status("starting the services"):
            addresses = _start(services, models, draftings)
        yield {way: stack.enter_context(Client(address)) for way, address in addresses.items()}


def _start(services: Services, models: Models, draftings: Sequence[Drafting]) -> dict[Drafting, str]:
    helpers = sorted({way.sub_drafting for way in draftings} - {SubDrafting.OFF})
    commands = [_sub_drafter_command(each, models) for each in helpers]
    target, *helping = services.start_together([("services.target", *models.target), *commands])
    helped = {helper: service.address for helper, service in zip(helpers, helping, strict=True)}
    drafters = services.start_together([_drafter_command(way, models, helped) for way in draftings])
    routers = services.start_together(
        [
            services.router_command([target.address], [drafter.address], {"model": str(models.tokenizer)})
            for drafter in drafters
        ]
    )
    return {way: router.address for way, router in zip(draftings, routers, strict=True)}


def _sub_drafter_command(sub_drafting: SubDrafting, models: Models) -> Flags:
    if sub_drafting is not SubDrafting.MODEL:
        return sub_drafter_command(sub_drafting.value)
    assert models.sub_drafter is not None, "no model for the sub-drafter"
    return ("services.drafter", "--role", "sub_drafter", "--draft-ahead", "off", *models.sub_drafter())


def _drafter_command(drafting: Drafting, models: Models, helped: Mapping[SubDrafting, str]) -> Flags:
    helper = helped.get(drafting.sub_drafting)
    ahead = "on" if drafting.is_ahead else "off"
    flags = ("--draft-ahead", ahead)
    return ("services.drafter", *models.drafter, *flags, *(("--sub-drafter", helper) if helper else ()))
