"""Speculation of one request: check its parameters, and complete them with the deployment's defaults."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from flyserve.core.errors import FieldViolation, quoted
from flyserve.core.presets import EXACT, PRESETS, tuned
from flyserve.core.request import SpeculationParams
from flyserve.core.spans import Span
from flyserve.core.types import FlyRule, Mode


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """Speculation of one response, with nothing left open.

    Attributes:
        mode: Decoding mode.
        fly_rule: Rule of mode fly.
        draft_length: Draft tokens per round; 0 drafts nothing.
        sub_drafter: True if the drafter may use its sub-drafter.
        exact_in: Kinds of text that mode fly decodes exactly.
    """

    mode: Mode
    fly_rule: FlyRule
    draft_length: int
    sub_drafter: bool
    exact_in: frozenset[Span] = frozenset()

    @property
    def rule(self) -> FlyRule:
        """Rule of the mode."""
        return self.fly_rule if self.mode is Mode.FLY else EXACT

    @property
    def drafts(self) -> bool:
        """True if a drafter drafts for a target."""
        return self.mode in (Mode.EXACT, Mode.FLY) and self.draft_length > 0

    def with_grammar(self) -> "SpeculationPlan":
        """Return the plan of a response with a grammar: its rule rescues no token that the target excludes.

        If structured text is decoded exactly, the whole response is.
        """
        is_exact = self.mode is Mode.FLY and Span.STRUCTURED in self.exact_in
        rule = replace(self.fly_rule, guard_excluded=True)
        return replace(self, mode=Mode.EXACT if is_exact else self.mode, fly_rule=rule)

    @property
    def end_at_stop(self) -> bool:
        """True if a draft may end after a stop token: no window reaches beyond it."""
        return self.rule.guard_stops


def check_speculation(
    given: SpeculationParams,
    default: SpeculationPlan,
    draft_length_limit: int,
    max_new_tokens_limit: int,
    rules: Mapping[str, FlyRule] = PRESETS,
) -> Iterator[FieldViolation]:
    """Yield a violation for every parameter that is unknown, out of range, or in conflict with another.

    `rules` are those that a request may name.
    """
    ranges = {
        "draft_length.max": (given.draft_length.max, 0, draft_length_limit),
        "window": (given.window, 1, draft_length_limit),
        "strict_prefix_tokens": (given.strict_prefix_tokens, 0, max_new_tokens_limit),
    }
    for field, (found, least, most) in ranges.items():
        if found is not None and not least <= found <= most:
            yield FieldViolation(f"speculation.{field}", f"is {found}, must be {least} to {most}")
    for field in ("threshold", "max_logprob_gap"):
        value = getattr(given, field)
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield FieldViolation(f"speculation.{field}", f"is {value}, must be finite and at least 0")
    if given.preset and given.preset not in rules:
        allowed = f"must be one of {', '.join(sorted(rules))}"
        yield FieldViolation("speculation.preset", f"is {quoted(given.preset)}, {allowed}")
    elif given.carry_after is not None and given.carry_after > (
        window := fly_rule(given, default, rules).window
    ):
        found_and_allowed = f"is {given.carry_after}, must be at most the window of {window}"
        yield FieldViolation("speculation.carry_after", found_and_allowed)


def plan_speculation(
    given: SpeculationParams, default: SpeculationPlan, rules: Mapping[str, FlyRule] = PRESETS
) -> SpeculationPlan:
    """Complete checked parameters with the deployment's defaults."""
    length = given.draft_length.max
    return SpeculationPlan(
        mode=given.mode or default.mode,
        fly_rule=fly_rule(given, default, rules),
        draft_length=default.draft_length if length is None else length,
        sub_drafter=default.sub_drafter if given.sub_drafter is None else given.sub_drafter,
        exact_in=default.exact_in | frozenset(given.exact_in),
    )


def fly_rule(
    given: SpeculationParams, default: SpeculationPlan, rules: Mapping[str, FlyRule] = PRESETS
) -> FlyRule:
    """Return the rule of mode fly: the given preset or the deployment's rule, with the given changes."""
    return tuned(rules[given.preset] if given.preset else default.fly_rule, given.changes)
