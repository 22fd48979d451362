"""Chat templates: render conversations with the model's template or a configured one."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fly.errors import ConfigError, InvalidRequest, describe
from router.text.tokenizer import Tokenizer

_ENVIRONMENT = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])


class ChatTemplate:
    """Render messages into token ids."""

    def __init__(self, tokenizer: Tokenizer, file: Path | None = None) -> None:
        """Use the template of a file, else the tokenizer's own; raise ConfigError for an unusable file."""
        self._tokenizer = tokenizer
        self._template = None if file is None else _read(file)

    @property
    def source(self) -> str | None:
        """The template in use; None if there is none."""
        return self._tokenizer.chat_template if self._template is None else self._template

    @property
    def tool_source(self) -> str:
        """The template in use for requests with tools; "" if there is none."""
        return self._template or self._tokenizer.tool_template or ""

    @cached_property
    def takes_tools(self) -> bool:
        """True if the template can render tools: it has the variable `tools`."""
        try:
            return "tools" in meta.find_undeclared_variables(_ENVIRONMENT.parse(self.tool_source))
        except TemplateSyntaxError:
            return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """Return the token ids of the prompt.

        Raise InvalidRequest if there is no template, or it rejects the messages.
        """
        if self._template is None and not self._tokenizer.has_chat_template:
            remedy = "use completions, or set the router's chat_template to a Jinja file"
            raise InvalidRequest.of("messages", f"need a chat template, and the model has none: {remedy}")
        if reserved := sorted(self._tokenizer.template_arguments & variables.keys()):
            raise InvalidRequest.of("chat_template_kwargs", f"must not set {', '.join(reserved)}")
        try:
            return self._tokenizer.apply_chat_template(
                messages, self._template, variables, add_generation_prompt, tools
            )
        except Exception as error:
            found = f"are rejected by the model's chat template: {describe(error)}"
            raise InvalidRequest.of("messages", found) from None


def _read(file: Path) -> str:
    try:
        template = file.read_text(encoding="utf-8")
        _ENVIRONMENT.parse(template)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template: {file} cannot be read: {describe(error)}") from None
    except TemplateSyntaxError as error:
        raise ConfigError(f"chat_template: {file} line {error.lineno}: {error.message}") from None
    return template
