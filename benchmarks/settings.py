"""The four ways of decoding that are compared."""

from fly.request import SpeculationParams
from fly.types import Mode

BASELINE = "plain"
SETTINGS = {
    BASELINE: SpeculationParams(mode=Mode.PLAIN),
    "exact": SpeculationParams(mode=Mode.EXACT, sub_drafter=False),
    "FLy": SpeculationParams(mode=Mode.FLY, sub_drafter=False),
    "FLy + sub-drafter": SpeculationParams(mode=Mode.FLY, sub_drafter=True),
}
"""By name, in the order of the table."""
