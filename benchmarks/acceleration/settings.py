"""The ways of drafting that are compared."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from fly.request import DraftLength, SpeculationParams
from fly.types import DraftLengthPolicy, Mode

DRAFT_LENGTH = 15
DEMO, PASSES, REPEATING, NON_REPEATING, AHEAD = (
    "demo",
    "second-pass",
    "repeating",
    "non-repeating",
    "draft-ahead",
)
"""The parts of the benchmark."""


class SubDrafting(StrEnum):
    """Who helps the drafter."""

    OFF = "off"
    NGRAM = "ngram"
    SUFFIX = "suffix"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a deployment drafts.

    Attributes:
        sub_drafting: Who helps the drafter.
        is_ahead: It goes on drafting while the target verifies.
    """

    sub_drafting: SubDrafting
    is_ahead: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """A deployment's way of drafting, and who says how long a draft is."""

    drafting: Drafting
    is_goodput: bool = False

    @property
    def name(self) -> str:
        said = [self.drafting.sub_drafting.value]
        said += ["ahead"] if self.drafting.is_ahead else []
        return " + ".join([*said, "goodput"] if self.is_goodput else said)

    @property
    def speculation(self) -> SpeculationParams:
        """What a request says."""
        policy = DraftLengthPolicy.GOODPUT if self.is_goodput else DraftLengthPolicy.FIXED
        return SpeculationParams(mode=Mode.FLY, draft_length=DraftLength(policy=policy, max=DRAFT_LENGTH))


DRAFTINGS = tuple(Drafting(*each) for each in product(SubDrafting, (False, True)))
SETTINGS = tuple(Setting(*each) for each in product(DRAFTINGS, (False, True)))
BASELINE = Setting(Drafting(SubDrafting.OFF))
SUFFIX = Setting(Drafting(SubDrafting.SUFFIX))
