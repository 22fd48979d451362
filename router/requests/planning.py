"""What a client may ask of speculation, and the rule and draft length that come of it."""

import math
from collections.abc import Iterable, Iterator

from fly.errors import FieldViolation
from fly.presets import EXACT, PRESETS, tuned
from fly.types import DraftLengthPolicy, EntropyEstimator, FlyRule, Mode, Tail
from router.config import LimitsConfig, SpeculationConfig
from router.requests.request import SpeculationParams, SpeculationPlan


def check_speculation(
    asked: SpeculationParams, default: SpeculationConfig, limits: LimitsConfig
) -> Iterator[FieldViolation]:
    """A violation for every parameter that is unknown, out of its range, or at odds with another."""
    named = list(_check_names(asked))
    yield from named
    yield from _check_lengths(asked, limits)
    if asked.threshold is not None and not (math.isfinite(asked.threshold) and asked.threshold >= 0):
        yield FieldViolation("speculation.threshold", f"is {asked.threshold}, must be finite and at least 0")
    if not named and asked.carry_after is not None:
        window = fly_rule(asked, default).window
        if asked.carry_after > window:
            found = f"is {asked.carry_after}, must be at most the window of {window}"
            yield FieldViolation("speculation.carry_after", found)


def plan_speculation(asked: SpeculationParams, default: SpeculationConfig) -> SpeculationPlan:
    """Completes checked parameters with the server's defaults."""
    mode = Mode(asked.mode) if asked.mode else default.mode
    return SpeculationPlan(
        mode=mode,
        rule=fly_rule(asked, default) if mode is Mode.FLY else EXACT,
        draft_length=default.draft_length.max if asked.draft_length is None else asked.draft_length,
        sub_drafter=default.sub_drafter if asked.sub_drafter is None else asked.sub_drafter,
        draft_length_policy=_policy(asked, default),
    )


def _policy(asked: SpeculationParams, default: SpeculationConfig) -> DraftLengthPolicy:
    """A request that gives a length means just that, unless it says otherwise."""
    if asked.draft_length_policy:
        return DraftLengthPolicy(asked.draft_length_policy)
    return default.draft_length.policy if asked.draft_length is None else DraftLengthPolicy.FIXED


def fly_rule(asked: SpeculationParams, default: SpeculationConfig) -> FlyRule:
    """The rule of mode `fly`: the request's preset or the server's own rule, with the request's changes."""
    changes = asked.changes
    if "tail" in changes:
        changes["tail"] = Tail(changes["tail"])
    if "entropy" in changes:
        changes["entropy"] = EntropyEstimator(changes["entropy"])
    return tuned(PRESETS[asked.preset] if asked.preset else default.rule, changes)


def _check_names(asked: SpeculationParams) -> Iterator[FieldViolation]:
    known: dict[str, Iterable[str]] = {
        "mode": (mode.value for mode in Mode),
        "preset": sorted(PRESETS),
        "tail": (tail.value for tail in Tail),
        "entropy": (estimator.value for estimator in EntropyEstimator),
        "draft_length_policy": (policy.value for policy in DraftLengthPolicy),
    }
    for field, names in known.items():
        found, allowed = getattr(asked, field), list(names)
        if found and found not in allowed:
            listed = ", ".join(allowed)
            yield FieldViolation(f"speculation.{field}", f"is {found!r}, must be one of {listed}")


def _check_lengths(asked: SpeculationParams, limits: LimitsConfig) -> Iterator[FieldViolation]:
    ranges = {
        "draft_length": (0, limits.draft_length),
        "window": (1, limits.draft_length),
        "strict_prefix_tokens": (0, limits.max_new_tokens),
    }
    for field, (least, most) in ranges.items():
        found = getattr(asked, field)
        if found is not None and not least <= found <= most:
            yield FieldViolation(f"speculation.{field}", f"is {found}, must be {least} to {most}")
