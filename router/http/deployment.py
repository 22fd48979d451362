"""What a model's object says of its deployment beyond OpenAI's shape: limits, defaults, presets."""

from dataclasses import asdict
from typing import Any

from fly.messages import ModelInfo
from router.generation.response import DeploymentInfo


def deployment_object(info: DeploymentInfo) -> dict[str, Any]:
    """The fields of `GenerationInfo`, by their names there, with names instead of numbers of enumerations."""
    return {
        "target": _model(info.target),
        "drafter": None if info.drafter is None else _model(info.drafter),
        "default_speculation": asdict(info.default_speculation),
        "max_new_tokens_limit": info.max_new_tokens_limit,
        "draft_length_limit": info.draft_length_limit,
        "choices_limit": info.choices_limit,
        "logprobs_limit": info.logprobs_limit,
        "presets": list(info.presets),
    }


def _model(info: ModelInfo) -> dict[str, Any]:
    return {**asdict(info), "role": info.role.value}
