"""What a router tells of its deployment: models, defaults, limits."""

from fly.messages import ModelInfo
from fly.presets import PRESETS
from router.config import RouterConfig, SpeculationConfig
from router.generation.response import DeploymentInfo
from router.requests.request import SpeculationParams


def describe(target: ModelInfo, drafter: ModelInfo | None, config: RouterConfig) -> DeploymentInfo:
    """What is served with this configuration."""
    return DeploymentInfo(
        target,
        drafter,
        _default(config.speculation),
        config.limits.max_new_tokens,
        config.limits.draft_length,
        config.limits.choices,
        config.limits.logprobs,
        tuple(PRESETS),
    )


def _default(config: SpeculationConfig) -> SpeculationParams:
    """What a request gets that says nothing, every field of the rule included."""
    rule = config.rule
    return SpeculationParams(
        mode=config.mode.value,
        preset=config.preset,
        draft_length=config.draft_length.max,
        sub_drafter=config.sub_drafter,
        window=rule.window,
        threshold=rule.threshold,
        tail=rule.tail.value,
        carry_after=rule.carry_after,
        guard_stops=rule.guard_stops,
        guard_excluded=rule.guard_excluded,
        strict_prefix_tokens=rule.strict_prefix_tokens,
        entropy=rule.entropy.value,
        draft_length_policy=config.draft_length.policy.value,
    )
