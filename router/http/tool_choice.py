"""`tool_choice` of both APIs of conversations: a mode, one tool, or the tools that are allowed."""

from collections.abc import Collection
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PlainValidator, ValidationError, ValidationInfo

from router.http.request_model import AtMost, RequestModel, SentBack

_MODES = ("none", "auto", "required")


class Choice(NamedTuple):
    """Meaning of a `tool_choice`.

    Attributes:
        mode: `none`, `auto` or `required`.
        names: Tools that may be called; None is any of them.
        is_single: True if the message is one call.
    """

    mode: str = "auto"
    names: Collection[str] | None = None
    is_single: bool = False


class NamedFunction(SentBack):
    """Name of a function; other fields of its description are dropped."""

    name: str

    @property
    def choice(self) -> Choice:
        return Choice("required", (self.name,), is_single=True)


class NamedTool(SentBack):
    """The tool that the model has to call."""

    type: Literal["function"]
    function: NamedFunction

    @property
    def choice(self) -> Choice:
        return self.function.choice


class AllowedSet(RequestModel):
    """Tools of which the model may call some, or with mode `required` has to call at least one."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1), AtMost("tools", "tools")]


class AllowedTools(RequestModel):
    """The tools that the model may call; the others are shown to it all the same."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedSet

    @property
    def choice(self) -> Choice:
        allowed = self.allowed_tools
        return Choice(allowed.mode, tuple(tool.function.name for tool in allowed.tools))


def tool_choice_validator(named: type[SentBack], allowed: type[RequestModel], form: str) -> PlainValidator:
    """Return the validator of `tool_choice`; `form` has those of a named tool and of allowed ones."""

    def choice(value: Any, info: ValidationInfo) -> str | SentBack | RequestModel:
        if value in _MODES:
            return str(value)
        is_allowed = isinstance(value, dict) and value.get("type") == "allowed_tools"
        try:
            return (allowed if is_allowed else named).model_validate(value, context=info.context)
        except ValidationError:
            raise ValueError(f'must be "none", "auto", "required" or {form}') from None

    return PlainValidator(
        choice, json_schema_input_type=Literal["none", "auto", "required"] | named | allowed
    )


ToolChoice = Annotated[
    Any,
    tool_choice_validator(
        NamedTool,
        AllowedTools,
        '{"type": "function", "function": {"name": ...}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [...]}}',
    ),
]
"""A mode, a `NamedTool` or `AllowedTools`. NOTE: pydantic warns when it serializes them as a union."""


def _function_choice(value: Any) -> str | NamedFunction:
    if value in ("none", "auto"):
        return str(value)
    try:
        return NamedFunction.model_validate(value)
    except ValidationError:
        raise ValueError('must be "none", "auto" or {"name": ...}') from None


FunctionChoice = Annotated[
    str | NamedFunction,
    PlainValidator(_function_choice, json_schema_input_type=Literal["none", "auto"] | NamedFunction),
]
"""The older form, `function_call`."""


def choice_of(asked: Any) -> Choice:
    """Return the meaning of a checked `tool_choice`; `auto` if it is None."""
    return Choice(asked or "auto") if asked is None or isinstance(asked, str) else asked.choice
