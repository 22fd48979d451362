"""Formats of tool calls and of reasoning by name, and how a chat template shows which one a model uses."""

from collections.abc import Mapping
from enum import StrEnum

from flyserve.core.markers import (
    DEEPSEEK_CALLS,
    HERMES_CALL,
    LLAMA3_CALL,
    MISTRAL_CALLS,
    MISTRAL_THINK,
    THINK,
    Markers,
)
from router.tools.channels import CHANNELS, GEMMA_THOUGHT
from router.tools.deepseek import DeepSeek
from router.tools.gpt_oss import GptOss
from router.tools.hermes import Hermes
from router.tools.llama3 import Llama3
from router.tools.mistral import Mistral
from router.tools.parser import ToolParser
from router.tools.tagged import Glm, Qwen3Coder


class ToolFamily(StrEnum):
    """Format of tool calls in a model's text."""

    AUTO = "auto"
    NONE = "none"
    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    DEEPSEEK = "deepseek"
    QWEN3_CODER = "qwen3_coder"
    GLM = "glm"
    GPT_OSS = "gpt_oss"


class ReasoningFamily(StrEnum):
    """Format of reasoning in a model's text."""

    AUTO = "auto"
    NONE = "none"
    THINK = "think"
    MISTRAL = "mistral"


PARSERS: Mapping[ToolFamily, type[ToolParser]] = {
    ToolFamily.HERMES: Hermes,
    ToolFamily.LLAMA3: Llama3,
    ToolFamily.MISTRAL: Mistral,
    ToolFamily.DEEPSEEK: DeepSeek,
    ToolFamily.QWEN3_CODER: Qwen3Coder,
    ToolFamily.GLM: Glm,
    ToolFamily.GPT_OSS: GptOss,
}
_REASONING: Mapping[ReasoningFamily, Markers] = {
    ReasoningFamily.THINK: THINK,
    ReasoningFamily.MISTRAL: MISTRAL_THINK,
}
_SIGNS = (
    ((HERMES_CALL[0], "<parameter="), ToolFamily.QWEN3_CODER),
    ((HERMES_CALL[0], "<arg_key>"), ToolFamily.GLM),
    ((HERMES_CALL[0], "<function="), ToolFamily.NONE),
    ((HERMES_CALL[0],), ToolFamily.HERMES),
    ((MISTRAL_CALLS[0],), ToolFamily.MISTRAL),
    ((DEEPSEEK_CALLS[0],), ToolFamily.DEEPSEEK),
    ((LLAMA3_CALL[0],), ToolFamily.LLAMA3),
    ((*CHANNELS, "functions."), ToolFamily.GPT_OSS),
    (('"parameters": dictionary of argument name',), ToolFamily.LLAMA3),
)
"""Texts that a chat template has by which its format of tool calls is recognized."""


def tool_parser(family: ToolFamily, template: str) -> type[ToolParser] | None:
    """Return the parser of a family, or with `auto` that of a template; None if there is none."""
    if family is not ToolFamily.AUTO:
        return PARSERS.get(family)
    shown = (found for signs, found in _SIGNS if all(sign in template for sign in signs))
    return PARSERS.get(next(shown, ToolFamily.NONE))


def reasoning_markers(family: ReasoningFamily, template: str) -> Markers | None:
    """Return the markers of a family, or with `auto` those whose end a template has."""
    if family is not ReasoningFamily.AUTO:
        return _REASONING.get(family)
    known = (*_REASONING.values(), GEMMA_THOUGHT)
    return next((markers for markers in known if markers[1] in template), None)


def has_channels(family: ReasoningFamily, template: str) -> bool:
    """Return True if a template has the channels of GPT-OSS, which only `auto` looks for."""
    return family is ReasoningFamily.AUTO and all(marker in template for marker in CHANNELS)
