"""Configuration of one router."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from fly.presets import DEFAULT_PRESET, PRESETS, tuned
from fly.request import DraftLength, RuleOverrides, SpeculationParams
from fly.types import DraftLengthPolicy, FlyRule, Mode
from router.policies import POLICIES
from router.requests.planning import SpeculationPlan
from services.common.config import Config
from services.common.derived_model import with_fields_of
from services.common.model_source import is_hub_id
from services.common.security.config import PublicSecurityConfig
from services.common.telemetry.config import TelemetryConfig


class LimitsConfig(Config):
    """What one request may ask for.

    Attributes:
        max_new_tokens: Most new tokens of one request.
        default_new_tokens: New tokens of a request that does not say.
        draft_length: Longest draft of one round.
        prompt_characters: Longest prompt text, before it is tokenized.
        stop_strings: Most stop strings.
        stop_string_characters: Longest stop string.
        listed_tokens: Most stop token ids, and most biased tokens.
        name_characters: Longest request id and cache salt.
        choices: Most choices; they are decoded side by side and take one place together.
        logprobs: Most likely tokens told per position.
        prompts: Most prompts of one HTTP request; each takes a place.
    """

    max_new_tokens: int = Field(4096, ge=1)
    default_new_tokens: int = Field(256, ge=1)
    draft_length: int = Field(64, ge=1)
    prompt_characters: int = Field(1_000_000, ge=1)
    stop_strings: int = Field(16, ge=0)
    stop_string_characters: int = Field(256, ge=1)
    listed_tokens: int = Field(1024, ge=0)
    name_characters: int = Field(256, ge=1)
    choices: int = Field(16, ge=1)
    logprobs: int = Field(20, ge=0)
    prompts: int = Field(64, ge=1)


class HttpConfig(Config):
    """What the HTTP face takes.

    Attributes:
        max_body_bytes: Longest body of a request.
        body_timeout_s: Within which a request's body must have come.
        cors_origins: Pages of these origins may call from a browser; `*` is any.
    """

    max_body_bytes: int = Field(8 << 20, ge=1024)
    body_timeout_s: float = Field(30.0, gt=0)
    cors_origins: tuple[str, ...] = ()


class DraftLengthConfig(Config):
    """Length of drafts.

    Attributes:
        policy: `fixed` always drafts `max` tokens, `goodput` the number with the most tokens per second.
        max: Draft tokens of one round; 15 and the pending token make one tile of 16 rows.
    """

    policy: DraftLengthPolicy = DraftLengthPolicy.FIXED
    max: int = Field(15, ge=1, le=64)


def _from_zero(kind: Any) -> Any:
    """Limit a number to 0 and above."""
    if kind is float:
        return Annotated[float, Field(ge=0, allow_inf_nan=False)]
    return Annotated[int, Field(ge=0)] if kind is int else kind


@with_fields_of(SpeculationParams, _from_zero, {"sub_drafter": True})
class SpeculationConfig(Config):
    """Speculation of a request that does not set its own; the fields are those of `SpeculationParams`.

    Attributes:
        mode: plain, exact or fly.
        preset: Named rule that `fly` starts from.
        draft_length: Length of drafts.
        sub_drafter: Whether the drafter may use its sub-drafter.

    The other fields change the preset, each as the field of `FlyRule` that has its name; a request that
    names a preset itself starts from that preset without these changes.
    """

    mode: Mode = Mode.FLY
    preset: str = DEFAULT_PRESET
    draft_length: DraftLengthConfig = DraftLengthConfig()
    window: int | None = Field(None, ge=1)

    @property
    def plan(self) -> SpeculationPlan:
        """Speculation of a request that sets nothing."""
        return SpeculationPlan(
            mode=self.mode,
            fly_rule=self.rule,
            draft_length=self.draft_length.max,
            sub_drafter=self._given("sub_drafter"),
            draft_length_policy=self.draft_length.policy,
        )

    @property
    def params(self) -> SpeculationParams:
        """The same as a request that sets everything, every field of the rule included."""
        return SpeculationParams(
            mode=self.mode,
            preset=self.preset,
            draft_length=DraftLength(self.draft_length.policy, self.draft_length.max),
            sub_drafter=self._given("sub_drafter"),
            **{each.name: getattr(self.rule, each.name) for each in fields(RuleOverrides)},
        )

    @property
    def rule(self) -> FlyRule:
        """Rule of mode `fly`."""
        changes = RuleOverrides(**{each.name: self._given(each.name) for each in fields(RuleOverrides)})
        return tuned(PRESETS[self.preset], changes.changes)

    def _given(self, name: str) -> Any:
        """Return a field that comes from `SpeculationParams`."""
        return getattr(self, name)

    @field_validator("preset")
    @classmethod
    def _is_known(cls, preset: str) -> str:
        if preset not in PRESETS:
            raise ValueError(f"must be one of {', '.join(sorted(PRESETS))}")
        return preset

    @model_validator(mode="after")
    def _carries_within_the_window(self) -> Self:
        found = self._given("carry_after")
        if found is not None and found > self.rule.window:
            raise ValueError(f"carry_after is {found}, at most the window of {self.rule.window}")
        return self


class RouterConfig(Config):
    """One router: what it serves, where it listens, whom it calls.

    Attributes:
        model: Folder with the target's tokenizer and generation config, or its hub id.
        host: Interface that the public server binds to.
        grpc_port: Its port; 0 takes a free one.
        http_port: Port of the OpenAI-compatible face; 0 takes a free one, None leaves it out.
        http: What that face takes.
        model_name: As it names the model; the folder's name, or the hub's org/name, where it is absent.
        chat_template: Jinja file that takes the place of the model's own chat template.
        registry: host:port of the registry; excludes `targets` and `drafters`.
        targets: host:port of every target replica, where there is no registry; or `dns:host:port` with a name
            that stands for all of them, which is looked up again and again.
        drafters: The same of the drafters.
        balancing: Policy that picks a replica.
        max_concurrent: Requests that decode at a time.
        max_queued: Requests that may wait for a place; more are rejected.
        start_timeout_s: How long a start waits for the first target.
        replica_wait_s: How long a request waits for a target when there is none.
        verify_timeout_s: A target that takes longer for one step is taken for broken.
        draft_timeout_s: A drafter that takes longer for one step is taken for broken.
        probe_interval_s: How often a replica is asked whether it lives, whatever its streams do.
        probe_timeout_s: One that leaves two such questions unanswered, and all streams, is gone.
        write_timeout_s: A client that takes nothing of its response for so long is given up.
        grace_s: How long running requests may go on when the router is told to stop.
        max_connection_age_s: Clients reconnect after so long, so that new routers get their share.
        security: How it protects what it serves.
        telemetry: What it tells of itself.
    """

    model: Path
    host: str = "127.0.0.1"
    grpc_port: int = Field(50051, ge=0, le=65535)
    http_port: int | None = Field(None, ge=0, le=65535)
    http: HttpConfig = HttpConfig()
    model_name: str | None = Field(None, min_length=1, max_length=256)
    chat_template: Path | None = None
    registry: str | None = None
    targets: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    balancing: str = "prefix_affinity"
    max_concurrent: int = Field(256, ge=1)
    max_queued: int = Field(1024, ge=0)
    start_timeout_s: float = Field(60.0, gt=0)
    replica_wait_s: float = Field(10.0, ge=0)
    verify_timeout_s: float = Field(120.0, gt=0)
    draft_timeout_s: float = Field(30.0, gt=0)
    probe_interval_s: float = Field(2.0, gt=0)
    probe_timeout_s: float = Field(3.0, gt=0)
    write_timeout_s: float = Field(60.0, gt=0)
    grace_s: float = Field(30.0, ge=0)
    max_connection_age_s: float = Field(600.0, gt=0)
    speculation: SpeculationConfig = SpeculationConfig()
    limits: LimitsConfig = LimitsConfig()
    security: PublicSecurityConfig = PublicSecurityConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @property
    def address(self) -> str:
        """host:port to listen at."""
        return f"{self.host}:{self.grpc_port}"

    @property
    def served_name(self) -> str:
        """What HTTP requests call the model."""
        if self.model_name is not None:
            return self.model_name
        return str(self.model).partition("@")[0] if is_hub_id(self.model) else self.model.resolve().name

    @field_validator("balancing")
    @classmethod
    def _is_known(cls, balancing: str) -> str:
        if balancing not in POLICIES:
            raise ValueError(f"must be one of {', '.join(POLICIES)}")
        return balancing

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.registry is None and not self.targets:
            raise ValueError("neither registry nor targets is set: one of them says where the replicas are")
        if self.registry is not None and (self.targets or self.drafters):
            raise ValueError("registry excludes targets and drafters")
        return self

    @model_validator(mode="after")
    def _defaults_keep_limits(self) -> Self:
        if self.speculation.draft_length.max > self.limits.draft_length:
            raise ValueError("speculation.draft_length.max lies beyond limits.draft_length")
        if self.limits.default_new_tokens > self.limits.max_new_tokens:
            raise ValueError("limits.default_new_tokens lies beyond limits.max_new_tokens")
        return self
