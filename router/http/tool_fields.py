"""Tools of a chat: their fields, and the checks of them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from fly.errors import InvalidRequest
from router.config import LimitsConfig
from router.http.fields import RequestModel
from router.http.limited import AtMost
from router.requests.depth import check_depth
from router.text.message_formats import MessageFormats
from router.tools.grammar import OfferedTools

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class FunctionFields(RequestModel):
    """A function.

    Attributes:
        name: 1 to 64 letters, digits, `_` and `-`.
        description: When and how to call it.
        parameters: JSON Schema of the arguments, which are an object.
        strict: True lets the model write only arguments that the schema allows.
    """

    name: str
    description: str | None = None
    parameters: Annotated[dict[str, Any], AtMost("items")] | None = None
    strict: bool | None = None


class Tool(RequestModel):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionFields


class NamedFunction(RequestModel):
    """Name of a function."""

    name: str


class NamedTool(RequestModel):
    """The tool that the model has to call."""

    type: Literal["function"]
    function: NamedFunction


def _choice(value: Any) -> str | NamedTool:
    if value in ("none", "auto", "required"):
        return str(value)
    match value:
        case {"type": "function", "function": {"name": str(name)}} if len(value) == 2:
            return NamedTool(type="function", function=NamedFunction(name=name))
    raise ValueError('must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}')


ToolChoice = Annotated[
    str | NamedTool,
    PlainValidator(_choice, json_schema_input_type=Literal["none", "auto", "required"] | NamedTool),
]


class ToolFields(RequestModel):
    """Fields about tools.

    Attributes:
        tools: Tools that the model may call.
        tool_choice: `auto` by default; `none` calls none, `required` at least one, a named tool that one.
        parallel_tool_calls: False allows one call at most; by default true.
    """

    tools: Annotated[list[Tool], AtMost("tools", "tools")] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True)
class Tools(OfferedTools):
    """The checked tools of a request.

    Attributes:
        rendered: The tools as the chat template takes them.
    """

    rendered: Sequence[Mapping[str, Any]] = ()


def checked_tools(body: ToolFields, limits: LimitsConfig, formats: MessageFormats) -> Tools:
    """Return the tools of a request, none with the choice `none`.

    Raises:
        InvalidRequest: They break a limit, do not fit together, or the model cannot use them.
    """
    tools, choice = body.tools or [], body.tool_choice or "auto"
    names = _names(tools, limits)
    if not tools and choice not in ("none", "auto"):
        raise InvalidRequest.of("tool_choice", "requires a tool call, but the request has no tools")
    named = choice.function.name if isinstance(choice, NamedTool) else None
    if named is not None and named not in names:
        raise InvalidRequest.of("tool_choice", f"names {named[:64]!r}, which is none of the tools")
    if not tools or choice == "none":
        return Tools()
    must_call = choice == "required" or named is not None
    _require_format(formats, must_call)
    return Tools(
        schemas={
            tool.function.name: tool.function.parameters or {"type": "object", "properties": {}}
            for tool in tools
            if named in (None, tool.function.name)
        },
        strict=frozenset(tool.function.name for tool in tools if tool.function.strict),
        must_call=must_call,
        parallel=body.parallel_tool_calls is not False and named is None,
        rendered=[_rendered(tool) for tool in tools],
    )


def _names(tools: Sequence[Tool], limits: LimitsConfig) -> set[str]:
    names = set[str]()
    length = 0
    for index, tool in enumerate(tools):
        name, path = tool.function.name, f"tools[{index}].function"
        if not _NAME.fullmatch(name):
            found = f"is {name[:64]!r}, must have 1 to 64 letters, digits, _ and -"
            raise InvalidRequest.of(f"{path}.name", found)
        if name in names:
            raise InvalidRequest.of(f"{path}.name", f"is {name!r}, which an earlier tool has, too")
        names.add(name)
        kind = (tool.function.parameters or {}).get("type", "object")
        if kind != "object":
            shown = repr(kind)[:64]
            raise InvalidRequest.of(f"{path}.parameters.type", f'is {shown}, must be "object"')
        check_depth(tool.function.parameters, f"{path}.parameters")
        length += len(json.dumps(tool.model_dump(exclude_none=True), ensure_ascii=False))
        if length > limits.tool_characters:
            allowed = f"at most {limits.tool_characters} are allowed (router.limits.tool_characters)"
            raise InvalidRequest.of("tools", f"has {length} characters or more as JSON, {allowed}")
    return names


def _require_format(formats: MessageFormats, must_call: bool) -> None:
    if not formats.takes_tools:
        remedy = "set the router's chat_template to one that has the variable tools"
        raise InvalidRequest.of("tools", f"are not rendered by the model's chat template: {remedy}")
    if formats.parser is None and not formats.is_off:
        remedy = "set router.tool_parser to the model's format, or to none to leave calls in the text"
        raise InvalidRequest.of("tools", f"are called in a format that was not recognized: {remedy}")
    if formats.parser is None and must_call:
        raise InvalidRequest.of("tool_choice", "requires a tool call, but router.tool_parser is none")


def _rendered(tool: Tool) -> dict[str, Any]:
    """Return a tool as the chat template takes it; `strict` is for the sampler, not for the model."""
    rendered: dict[str, Any] = tool.model_dump(exclude_none=True)
    rendered["function"].pop("strict", None)
    rendered["function"].setdefault("description", "")
    rendered["function"].setdefault("parameters", {"type": "object", "properties": {}})
    return rendered
