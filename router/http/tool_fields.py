"""Tools of a chat: their fields, and the checks of them."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from flyserve.core.errors import InvalidRequest
from router.config import LimitsConfig
from router.http.parsing import shown
from router.http.request_model import AtMost, Described, RequestModel
from router.http.tool_choice import Choice, ToolChoice, choice_of
from router.json_text import check_depth
from router.text.message_formats import MessageFormats
from router.tools.grammar import OfferedTools

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class FunctionFields(Described):
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

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """JSON Schema of the arguments; any object without one."""
        return self.parameters or {"type": "object", "properties": {}}

    @property
    def rendered(self) -> dict[str, Any]:
        """The tool as chat templates take it; `strict` is for the sampler, not for the model."""
        function = self.model_dump(include={"name", "description", "parameters"}, exclude_none=True)
        function.setdefault("description", "")
        function.setdefault("parameters", self.schema_of_arguments)
        return {"type": "function", "function": function}


class Tool(Described):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionFields


class ToolFields(RequestModel):
    """Fields about tools.

    Attributes:
        tools: Tools that the model may call.
        tool_choice: `auto` by default; `none` calls none, `required` at least one, a named tool that one.
            Allowed tools are some of all.
        parallel_tool_calls: False allows one call at most; by default true.
    """

    tools: Annotated[list[Tool], AtMost("tools", "tools")] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def asked_tools(self) -> "AskedTools":
        """The tools, in the form that both APIs of conversations share."""
        return AskedTools(
            functions={f"tools[{at}].function": tool.function for at, tool in enumerate(self.tools or ())},
            descriptions={f"tools[{at}]": tool for at, tool in enumerate(self.tools or ())},
            choice=choice_of(self.tool_choice),
            parallel=self.parallel_tool_calls is not False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTools:
    """Tools of a body, whatever its API.

    Attributes:
        functions: The functions, by the paths of their fields.
        choice: Mode, and the tools that may be called.
        parallel: True if a message may have several calls.
        descriptions: What the functions are described in, if that has fields of its own, by path.
        built_in: Types of tools that only OpenAI's models have, by path; they are dropped.
    """

    functions: Mapping[str, FunctionFields]
    choice: Choice
    parallel: bool
    descriptions: Mapping[str, Described] = field(default_factory=dict)
    built_in: Mapping[str, str] = field(default_factory=dict)

    @property
    def warnings(self) -> Iterator[str]:
        """Warnings about tools and unknown fields that are for another server, or misspelled."""
        for path, kind in self.built_in.items():
            yield f"{path} has no effect: {kind} is a tool that only OpenAI's models have"
        for path, each in (*self.descriptions.items(), *self.functions.items()):
            for name in each.model_extra or ():
                yield f"{path}.{name[:60]} has no effect: the field is unknown"


@dataclass(frozen=True, slots=True)
class Tools(OfferedTools):
    """The checked tools of a request.

    Attributes:
        rendered: The tools as the chat template takes them.
    """

    rendered: Sequence[Mapping[str, Any]] = ()


def checked_tools(asked: AskedTools, limits: LimitsConfig, formats: MessageFormats) -> Tools:
    """Return the tools of a request, none with the choice `none`.

    Raises:
        InvalidRequest: They break a limit, do not fit together, or the model cannot use them.
    """
    _check_functions(asked, limits)
    _check_choice(asked)
    choice = asked.choice
    if not asked.functions or choice.mode == "none":
        return Tools()
    must_call = choice.mode == "required"
    _require_format(formats, must_call)
    functions = asked.functions.values()
    has_one_call = choice.is_single or (formats.parser is not None and formats.parser.has_one_call)
    callable_ones = [each for each in functions if choice.names is None or each.name in choice.names]
    return Tools(
        schemas={each.name: each.schema_of_arguments for each in callable_ones},
        strict=frozenset(each.name for each in callable_ones if each.strict),
        must_call=must_call,
        are_some=len(callable_ones) < len(functions),
        parallel=asked.parallel and not has_one_call,
        rendered=[each.rendered for each in functions],
    )


def _check_choice(asked: AskedTools) -> None:
    if not asked.functions and asked.choice.mode == "required":
        raise InvalidRequest.of("tool_choice", "requires a tool call, but the request has no tools")
    names = {each.name for each in asked.functions.values()}
    if (unknown := next((each for each in asked.choice.names or () if each not in names), None)) is not None:
        raise InvalidRequest.of("tool_choice", f"names {unknown[:64]!r}, which is none of the tools")


def _check_functions(asked: AskedTools, limits: LimitsConfig) -> None:
    names, length = set[str](), 0
    for path, function in asked.functions.items():
        _check_function(function, names, path)
        names.add(function.name)
        length += len(json.dumps(function.model_dump(exclude_none=True), ensure_ascii=False))
        if length > limits.tool_characters:
            allowed = f"at most {limits.tool_characters} are allowed (router.limits.tool_characters)"
            raise InvalidRequest.of("tools", f"has {length} characters or more as JSON, {allowed}")


def _check_function(function: FunctionFields, earlier: Collection[str], path: str) -> None:
    name = function.name
    if not _NAME.fullmatch(name):
        found = f"is {name[:64]!r}, must have 1 to 64 letters, digits, _ and -"
        raise InvalidRequest.of(f"{path}.name", found)
    if name in earlier:
        raise InvalidRequest.of(f"{path}.name", f"is {name!r}, which an earlier tool has, too")
    kind = (function.parameters or {}).get("type") or "object"
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequest.of(f"{path}.parameters.type", f'is {shown(kind)}, must be "object"')
    check_depth(function.parameters, f"{path}.parameters")


def _require_format(formats: MessageFormats, must_call: bool) -> None:
    if not formats.takes_tools:
        remedy = "set the router's chat_template to one that has the variable tools"
        raise InvalidRequest.of("tools", f"are not rendered by the model's chat template: {remedy}")
    if formats.parser is None and not formats.is_off:
        remedy = "set router.tool_parser to the model's format, or to none to leave calls in the text"
        raise InvalidRequest.of("tools", f"are called in a format that was not recognized: {remedy}")
    if formats.parser is None and must_call:
        raise InvalidRequest.of("tool_choice", "requires a tool call, but router.tool_parser is none")
