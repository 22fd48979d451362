"""Drafting ahead where drafter and target each have a machine of their own: engines that only wait."""

from benchmarks.acceleration.services import Models, simulated_flags
from benchmarks.paths import DEMO_MODELS

AGREEMENT = 0.9
"""Probability that the drafter takes the target's choice."""

TARGET_S, DRAFTER_S = 0.024, 0.003
"""Of a forward, however large: a draft of 8 takes as long as a verification."""

VOCABULARY = 1024


def ahead_name(length: int, is_ahead: bool) -> str:
    """Of a draft length with drafting ahead, or without."""
    return f"drafts of {length}{', ahead' if is_ahead else ''}"


def simulated_models() -> Models:
    """A target and its drafter; any tokenizer will do for their ids."""
    costs = {"vocab_size": VOCABULARY, "per_token_s": 0.0, "per_token_above_s": 0.0}
    return Models(
        target=simulated_flags({"base_s": TARGET_S, **costs}),
        drafter=simulated_flags({"base_s": DRAFTER_S, "agreement": AGREEMENT, **costs}),
        sub_drafter=None,
        tokenizer=DEMO_MODELS / "target",
    )
