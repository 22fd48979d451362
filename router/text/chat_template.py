"""Chat templates: render conversations with the model's template or a configured one."""

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cached_property, lru_cache
from math import inf
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta

from flyserve.core.errors import NO_CHAT_TEMPLATE, ConfigError, FieldViolation, InvalidRequest, describe
from router.text.control_tokens import ControlTokens
from router.text.jinja import TemplateEnvironment
from router.text.template_fit import TemplateFit
from router.text.tokenizer import Tokenizer
from router.text.traced import Traced, joined, of_template

logger = logging.getLogger(__name__)

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation"))
"""Roles that may be a part of a control token: a template may write `<|`, the role and `|>`."""
_SET_BY_ROUTER = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
)

_TALK = [{"role": role, "content": "Hello"} for role in ("system", "user", "assistant", "user")]
"""A conversation that most templates take, wholly or in part."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find it.",
        "parameters": {"type": "object", "properties": {}},
    },
}
"""A tool for templates that are only for requests with tools."""


class Ending(Enum):
    """Place at which a rendered conversation ends."""

    ANSWER = "where the model answers"
    MESSAGE = "after the last message"
    CONTINUATION = "within the last message, which the model continues"


class _Compiled(NamedTuple):
    template: Template
    control_tokens: ControlTokens


class ChatTemplate:
    """Render messages into token ids.

    Control tokens that are spelled out in anything that a client sends are ordinary text; only those that the
    template writes count.
    """

    def __init__(self, tokenizer: Tokenizer, file: Path | None = None) -> None:
        """Use the template of a file, else the tokenizer's own; raise ConfigError for an unusable file."""
        self._tokenizer = tokenizer
        self._environment = TemplateEnvironment()
        self._template = None if file is None else self._read(file)
        self._compiled = lru_cache(2)(self._compile)
        self._fit = lru_cache(2)(self._fit_of)
        self._reserved = _SET_BY_ROUTER | tokenizer.template_arguments | self._environment.globals.keys()
        self._variables = {name: of_template(text) for name, text in tokenizer.template_variables.items()}

    @property
    def source(self) -> str | None:
        """The template in use; None if there is none."""
        return self._tokenizer.chat_template if self._template is None else self._template

    @property
    def is_present(self) -> bool:
        """True if there is a template for requests without tools."""
        return bool(self._source(has_tools=False))

    @property
    def tool_source(self) -> str:
        """The template in use for requests with tools; "" if there is none."""
        return self._source(has_tools=True)

    @property
    def takes_tools(self) -> bool:
        """True if the template can render tools."""
        return self.takes("tools")

    def takes(self, variable: str) -> bool:
        """Return True if the template has a variable of this name."""
        return variable in self._taken

    @cached_property
    def _taken(self) -> set[str]:
        """Names of the variables that the template expects."""
        try:
            return meta.find_undeclared_variables(self._environment.parse(self.tool_source))
        except TemplateSyntaxError:
            return set()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        ending: Ending = Ending.ANSWER,
        tools: Sequence[Mapping[str, Any]] = (),
        most: float = inf,
    ) -> tuple[int, ...]:
        """Return the token ids of the prompt, at least one message.

        Raise InvalidRequest if there is no template, it rejects the messages or cannot continue the last one,
        a variable is reserved, or the text has more than `most` characters.
        """
        if not (source := self._source(bool(tools))):
            remedy = "use completions, or set the router's chat_template to a Jinja file"
            found = f"need a chat template, and the model has none: {remedy}"
            raise InvalidRequest(FieldViolation("messages", found, NO_CHAT_TEMPLATE))
        if reserved := sorted(self._reserved & variables.keys()):
            found = "must not be set: the router uses this name itself; leave it out"
            paths = (f"chat_template_kwargs.{name}" for name in reserved)
            raise InvalidRequest(*(FieldViolation(path, found) for path in paths))
        last, messages = messages[-1], self.fitted(messages, bool(tools))
        mark = f"[{uuid.uuid4().hex}]" if ending is Ending.CONTINUATION else ""
        if mark:
            if any(last[name] != messages[-1][name] for name in ("role", "content")):
                raise _not_last()
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + mark}]
        variables = {**variables, "continue_final_message": bool(mark)}
        compiled, text = self._rendered(source, messages, variables, ending is Ending.ANSWER, tools, most)
        return compiled.control_tokens.encode(_up_to(mark, text) if mark else text)

    def fitted(self, messages: Sequence[Mapping[str, Any]], has_tools: bool) -> Sequence[Mapping[str, Any]]:
        """Return messages in a form that the template takes; their calls have arguments as JSON text."""
        return self._fit(has_tools).fitted(messages)

    def lost_tokens(self) -> list[str]:
        """Return control tokens that the template writes in a way that makes them look like a client's."""
        lost = set[str]()
        for messages in (_TALK, _TALK[1:], _TALK[1:2]):
            with suppress(InvalidRequest):
                compiled, text = self._rendered(self._source(has_tools=False), messages, {}, True, ())
                lost |= compiled.control_tokens.foreign(text)
        return sorted(lost)

    def _rendered(
        self,
        source: str,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]],
        most: float = inf,
    ) -> tuple[_Compiled, Traced]:
        has_channels = "<|channel|>" in source
        given = {
            **self._variables,
            **variables,
            "messages": [_for_template(each, has_channels) for each in messages],
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            compiled = self._compiled(source)
            return compiled, joined(_within(most, compiled.template.generate(given)))
        except InvalidRequest:
            raise
        except Exception as error:
            raise InvalidRequest.of("messages", _fault(error)) from None

    def _source(self, has_tools: bool) -> str:
        own = self._tokenizer.template_for(has_tools)
        return (own if self._template is None else self._template) or ""

    def _fit_of(self, has_tools: bool) -> TemplateFit:
        source, tools = self._source(has_tools), [_TOOL] if has_tools else []
        return TemplateFit(lambda messages: self._rendered(source, messages, {}, True, tools)[1], source)

    def _compile(self, source: str) -> _Compiled:
        template = self._environment.from_string(source)
        written = self._environment.literal_text(source)
        return _Compiled(template, ControlTokens(self._tokenizer.backend, written))

    def _read(self, file: Path) -> str:
        try:
            template = file.read_text(encoding="utf-8")
            self._environment.parse(template)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"chat_template: {file} cannot be read: {describe(error)}") from None
        except TemplateSyntaxError as error:
            raise ConfigError(f"chat_template: {file} line {error.lineno}: {error.message}") from None
        return template


def _within(most: float, parts: Iterable[str]) -> Iterator[str]:
    """Yield the parts of a text, one by one: a template may repeat a long variable for every message."""
    length = 0
    for part in parts:
        length += len(part)
        if length > most:
            found = f"are rendered to more than {most} characters: shorten chat_template_kwargs and names"
            raise InvalidRequest.of("messages", found)
        yield part


def _up_to(mark: str, text: Traced) -> Traced:
    """Return a rendered text up to a mark at the end of the last message."""
    if (end := text.rfind(mark)) < 0:
        raise _not_last()
    return text[:end]


def _not_last() -> InvalidRequest:
    found = "end with a message that the model's chat template does not render at its end"
    return InvalidRequest.of("messages", f"{found}: set continue_final_message to false")


def _for_template(message: Mapping[str, Any], has_channels: bool) -> dict[str, Any]:
    """Return a message as templates take it: without fields of None, with gpt-oss' name of the reasoning.

    That one has channels, and refuses a message with reasoning, content and calls: it keeps the content.
    """
    found = {name: value for name, value in message.items() if value is not None}
    if found.get("role") in _ROLES:
        found["role"] = of_template(found["role"])
    is_refused = has_channels and found.get("content") and found.get("tool_calls")
    if is_refused or "reasoning_content" not in found:
        return found
    return {"thinking": found["reasoning_content"], **found}


def _fault(error: Exception) -> str:
    """Return why a template failed: in its own words, but never in those of a library."""
    if type(error) is TemplateError:
        return f"are rejected by the model's chat template: {describe(error).removeprefix('TemplateError: ')}"
    logger.debug("chat template failed: %s", describe(error))
    found = f"cannot be rendered by the model's chat template, which fails in line {_line(error)}"
    return f"{found}: check the roles, the tool calls and chat_template_kwargs"


def _line(error: Exception) -> int:
    """Return the line of the template in which it failed."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    return lines[-1] if lines else 1
