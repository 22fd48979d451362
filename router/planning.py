"""What a client may ask of speculation, and the rule and draft length that come of it."""

from collections.abc import Iterator
from dataclasses import replace

from fly.errors import FieldViolation
from fly.presets import EXACT, PRESETS
from fly.types import FlyRule, Mode
from router.config import LimitsConfig, SpeculationConfig
from router.request import SpeculationParams, SpeculationPlan

_MODES = frozenset(mode.value for mode in Mode)


def check_speculation(asked: SpeculationParams, limits: LimitsConfig) -> Iterator[FieldViolation]:
    """A violation for every parameter that is unknown or out of its range."""
    if asked.mode and asked.mode not in _MODES:
        known = ", ".join(mode.value for mode in Mode)
        yield FieldViolation("speculation.mode", f"is {asked.mode}, must be one of {known}")
    if asked.preset and asked.preset not in PRESETS:
        known = ", ".join(sorted(PRESETS))
        yield FieldViolation("speculation.preset", f"is {asked.preset!r}, must be one of {known}")
    if asked.draft_length is not None and asked.draft_length > limits.draft_length:
        allowed = f"must be at most {limits.draft_length}"
        yield FieldViolation("speculation.draft_length", f"is {asked.draft_length}, {allowed}")
    if asked.window is not None and not 1 <= asked.window <= limits.draft_length:
        yield FieldViolation("speculation.window", f"is {asked.window}, must be 1 to {limits.draft_length}")
    if asked.threshold is not None and not asked.threshold >= 0:  # so that NaN is refused
        yield FieldViolation("speculation.threshold", f"is {asked.threshold}, must be at least 0")


def plan_speculation(asked: SpeculationParams, default: SpeculationConfig) -> SpeculationPlan:
    """Completes checked parameters with the server's defaults."""
    mode = Mode(asked.mode) if asked.mode else default.mode
    return SpeculationPlan(
        mode=mode,
        rule=_tuned(PRESETS[asked.preset or default.preset], asked) if mode is Mode.FLY else EXACT,
        draft_length=default.draft_length if asked.draft_length is None else asked.draft_length,
        sub_drafter=default.sub_drafter if asked.sub_drafter is None else asked.sub_drafter,
    )


def _tuned(rule: FlyRule, asked: SpeculationParams) -> FlyRule:
    """The preset with the client's own window and threshold; what must follow a mismatch grows along."""
    if asked.window is not None:
        beyond = rule.min_following - rule.window
        rule = replace(rule, window=asked.window, min_following=asked.window + beyond)
    if asked.threshold is not None:
        rule = replace(rule, threshold=asked.threshold)
    return rule
