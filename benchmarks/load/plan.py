"""How much is measured, and which ways of decoding."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fly.request import DraftLength, SpeculationParams
from fly.types import DraftLengthPolicy, Mode

DRAFT_LENGTH = 15
BASELINE = "plain"
GOODPUT = "FLy, goodput"
SETTINGS: Mapping[str, SpeculationParams] = {
    BASELINE: SpeculationParams(mode=Mode.PLAIN),
    "exact": SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=DRAFT_LENGTH)),
    f"FLy, fixed {DRAFT_LENGTH}": SpeculationParams(
        mode=Mode.FLY, draft_length=DraftLength(max=DRAFT_LENGTH)
    ),
    GOODPUT: SpeculationParams(
        mode=Mode.FLY, draft_length=DraftLength(policy=DraftLengthPolicy.GOODPUT, max=DRAFT_LENGTH)
    ),
}
"""By name, in the order of the tables."""


@dataclass(frozen=True, slots=True)
class Level:
    """So many requests at once.

    Attributes:
        concurrency: Clients, each with one request after the other.
        settle_s: Before anything is counted: prompts are computed, and clients fall out of step.
        measure_s: While tokens are counted.
        spread_s: In which the clients begin, one after the other; not all of their prompts at once.
    """

    concurrency: int
    settle_s: float
    measure_s: float
    spread_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        repetitions: Windows of every setting at every level, after one that is not counted.
    """

    levels: tuple[Level, ...] = (
        Level(1, 0.5, 2.5),
        Level(4, 0.5, 2.5),
        Level(16, 1.0, 3.5),
        Level(64, 2.5, 5.0),
    )
    repetitions: int = 7

    def quick(self) -> "Plan":
        """As much as shows that everything works, in some seconds."""
        return replace(self, levels=(Level(1, 0.2, 1.2), Level(64, 0.6, 1.2)), repetitions=1)

    @property
    def most_at_once(self) -> int:
        return max(level.concurrency for level in self.levels)

    @property
    def windows_per_level(self) -> int:
        """Those that are not counted included."""
        return (1 + self.repetitions) * len(SETTINGS)
