"""Speculation of a deployment: the default of its requests."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from flyserve.core.errors import quoted
from flyserve.core.presets import DEFAULT_PRESET, PRESETS, tuned
from flyserve.core.request import POLICY_REMEDY, DraftLength, RuleOverrides, SpeculationParams
from flyserve.core.spans import Span
from flyserve.core.types import FlyRule, Mode
from router.requests.planning import SpeculationPlan
from services.common.config import Config, OneOf
from services.common.derived_model import with_fields_of


def _mode(name: str) -> Mode:
    # NOTE: pydantic cannot call the class itself: from Python 3.12 on its signature is (*values).
    return Mode(name)


TargetMode = Annotated[
    Mode, OneOf(mode.value for mode in Mode if mode is not Mode.DRAFT), AfterValidator(_mode)
]
"""A mode in which targets answer."""


class DraftLengthConfig(Config):
    """Length of the drafts."""

    reserved: ClassVar[Mapping[str, str]] = {"policy": POLICY_REMEDY}

    max: int = Field(15, ge=1, le=64)
    """Draft tokens of one round; 15 and the pending token make one tile of 16 rows."""

    max_sequences: int | None = Field(None, ge=1)
    """Most open sequences of a target at which its responses draft; above it rounds have no drafts until
    fewer are open. null sets no limit. `reproducible_drafts` ignores it."""


def _from_zero(kind: Any) -> Any:
    """Limit a number to 0 and above."""
    if kind is float:
        return Annotated[float, Field(ge=0, allow_inf_nan=False)]
    return Annotated[int, Field(ge=0)] if kind is int else kind


class _Rule(Config):
    """Changes to a named rule, by the fields of `RuleOverrides`, which a subclass has."""

    preset: str = DEFAULT_PRESET

    def tuned(self, rules: Mapping[str, FlyRule]) -> FlyRule:
        """Return the rule; raise ValueError if none has its name, or its changes do not fit each other."""
        if self.preset not in rules:
            raise ValueError(f"preset is {quoted(self.preset)}, must be one of {', '.join(sorted(rules))}")
        given = RuleOverrides(**{each.name: getattr(self, each.name) for each in fields(RuleOverrides)})
        rule = tuned(rules[self.preset], given.changes)
        if given.carry_after is not None and given.carry_after > rule.window:
            raise ValueError(f"carry_after is {given.carry_after}, at most the window of {rule.window}")
        return rule


@with_fields_of(RuleOverrides, _from_zero)
class PresetConfig(_Rule):
    """A rule of the deployment's own: a preset with changes."""

    preset: Annotated[str, OneOf(sorted(PRESETS))] = DEFAULT_PRESET
    """Preset that the other keys change."""

    window: int | None = Field(None, ge=1)
    """Number of draft tokens after a mismatch that must all match for it to be accepted."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.tuned(PRESETS)
        return self


def _new_name(name: str) -> str:
    if name in PRESETS:
        raise ValueError("must be another name than those of the presets that there are")
    return name


_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$")]
PresetName = Annotated[_Name, AfterValidator(_new_name)]
"""Name of a deployment's own preset."""


@with_fields_of(SpeculationParams, _from_zero, {"sub_drafter": True})
class SpeculationConfig(_Rule):
    """Speculation of a request that does not set its own; its fields are those of `SpeculationParams`.

    The fields of the rule change the preset. A request that names a preset itself starts from that preset
    without these changes.
    """

    mode: TargetMode = Mode.FLY
    """`plain` decodes without drafts, `exact` accepts only the target's own tokens, `fly` also accepts
    draft tokens by the rule."""

    preset: _Name = DEFAULT_PRESET
    """Named rule that `fly` starts from: official, vllm, paper, flyserve, or one of `presets`."""

    presets: dict[PresetName, PresetConfig] = Field({}, max_length=64)
    """The deployment's own presets by name, for requests, too. `flyserve calibrate` writes them."""

    draft_length: DraftLengthConfig = DraftLengthConfig()
    """Length of the drafts."""

    window: int | None = Field(None, ge=1)
    """Number of draft tokens after a mismatch that must all match for it to be accepted."""

    exact_in: tuple[Span, ...] = ()
    """Kinds of text that `fly` decodes exactly; a request may add others."""

    @cached_property
    def plan(self) -> SpeculationPlan:
        """Speculation of a request that sets nothing."""
        return SpeculationPlan(
            mode=self.mode,
            fly_rule=self.rule,
            draft_length=self.draft_length.max,
            sub_drafter=self._given("sub_drafter"),
            exact_in=frozenset(self.exact_in),
        )

    @property
    def params(self) -> SpeculationParams:
        """The same as a request that sets everything, every field of the rule included."""
        return SpeculationParams(
            mode=self.mode,
            preset=self.preset,
            draft_length=DraftLength(self.draft_length.max),
            sub_drafter=self._given("sub_drafter"),
            exact_in=self.exact_in,
            **{each.name: getattr(self.rule, each.name) for each in fields(RuleOverrides)},
        )

    @property
    def rule(self) -> FlyRule:
        """Rule of mode `fly`."""
        return self.tuned(self.rules)

    @cached_property
    def rules(self) -> Mapping[str, FlyRule]:
        """The named rules: all presets, the deployment's own included."""
        return {**PRESETS, **{name: own.tuned(PRESETS) for name, own in self.presets.items()}}

    def _given(self, name: str) -> Any:
        """Return a field that comes from `SpeculationParams`."""
        return getattr(self, name)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.tuned(self.rules)
        return self
