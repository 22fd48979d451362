"""The four ways of decoding that are compared."""

from fly.types import Mode
from flyserve.types import Speculation

BASELINE = "plain"
SETTINGS = {
    BASELINE: Speculation(mode=Mode.PLAIN),
    "exact": Speculation(mode=Mode.EXACT, sub_drafter=False),
    "FLy": Speculation(mode=Mode.FLY, sub_drafter=False),
    "FLy + sub-drafter": Speculation(mode=Mode.FLY, sub_drafter=True),
}
"""By name, in the order of the table."""
