"""Messages of a conversation: their fields, and their form for the chat template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from flyserve.core.errors import InvalidRequest
from router.http.fields import TemplateVariables, Text
from router.http.older_functions import with_tool_calls
from router.http.request_model import AtMost, RequestModel, SentBack
from router.requests.prompt_length import too_many_characters
from router.text.chat_template import Ending


def _as_text(value: Any) -> Any:
    """Return arguments as JSON text; some clients hand them back as an object."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


Arguments = Annotated[
    str, BeforeValidator(_as_text, json_schema_input_type=str | dict[str, Any]), AtMost("items", "arguments")
]
"""Arguments of a call: JSON as text, which the model may have left invalid."""


OwnText = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else "")]
"""Reasoning as a text; other forms, which frameworks have for other models, are dropped."""


class CalledFunctionFields(SentBack):
    """A tool that an earlier answer called."""

    name: str
    arguments: Arguments = ""


class ToolCallFields(SentBack):
    """A call of an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunctionFields


class Message(SentBack):
    """One message of a conversation.

    Attributes:
        role: Author.
        content: Its text; an assistant's message may have none.
        name: Name of the author.
        tool_calls: Calls of an assistant's message.
        tool_call_id: Id of the call that a tool's message answers.
        function_call: Older form of a call; a message of role function answers it.
        reasoning: Reasoning of an assistant's message.
        reasoning_content: Older name of `reasoning`.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text
    name: str | None = None
    tool_calls: Annotated[list[ToolCallFields], Field(fail_fast=True), AtMost("items", "calls")] | None = None
    tool_call_id: str | None = None
    function_call: Annotated[CalledFunctionFields | None, BeforeValidator(lambda call: call or None)] = None
    reasoning: OwnText | None = None
    reasoning_content: OwnText | None = None

    @model_validator(mode="after")
    def _has_fields_of_its_role(self) -> Self:
        roles = (("tool_calls", "assistant"), ("function_call", "assistant"), ("tool_call_id", "tool"))
        for field, role in roles:
            if self.role != role and getattr(self, field):
                raise ValueError(f"has role {self.role} and {field}, which only role {role} may have")
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("has role tool, but no tool_call_id")
        return self


def _with_text(value: Any) -> Any:
    """Return a message with content: an answer, or the result of a call, may have none.

    Audio of an answer is refused: no chat template takes it, and the conversation would be another one.
    """
    if not isinstance(value, dict):
        return value
    if value.get("audio"):
        raise PydanticCustomError("unsupported", "has audio, which is not supported", {})
    if value.get("role") in ("assistant", "tool", "function") and not value.get("content"):
        return {**value, "content": value.get("refusal") or ""}
    return value


Messages = Annotated[
    list[Annotated[Message, BeforeValidator(_with_text)]],
    Field(fail_fast=True, min_length=1),
    AtMost("items", "messages"),
]
"""A conversation, at least one message."""


class TemplateFields(RequestModel):
    """Fields about the rendering of a conversation.

    Attributes:
        chat_template_kwargs: Additional variables of the chat template.
        add_generation_prompt: False lets the prompt end after the last message; by default the model answers.
        continue_final_message: The model continues the last message. By default it does so if that is an
            assistant's text.
    """

    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def ending(self, last: Mapping[str, Any]) -> Ending:
        """Return the place at which the prompt ends, from the conversation's last message."""
        is_text = bool(last["content"]) and not last.get("tool_calls")
        if self.continue_final_message and self.add_generation_prompt:
            found = "must not be true with continue_final_message: no new message begins"
            raise InvalidRequest.of("add_generation_prompt", found)
        if self.continue_final_message and not is_text:
            raise InvalidRequest.of("continue_final_message", "is true, but the last message is no text")
        if self.add_generation_prompt is False and not self.continue_final_message:
            return Ending.MESSAGE
        is_prefill = is_text and last["role"] == "assistant" and self.add_generation_prompt is None
        continues = is_prefill if self.continue_final_message is None else self.continue_final_message
        return Ending.CONTINUATION if continues else Ending.ANSWER


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, whatever the API that it came by.

    Attributes:
        messages: Its messages as chat templates take them, except that arguments of calls are texts.
    """

    messages: Sequence[dict[str, Any]]

    def within(self, limit: int) -> Sequence[dict[str, Any]]:
        """Return the messages.

        Raises:
            InvalidRequest: There is no message, or arguments of calls and reasoning have more than `limit`
                characters.
        """
        if not self.messages:
            raise InvalidRequest.of("messages", "must have a message, reasoning alone is none")
        functions = [call["function"] for each in self.messages for call in each.get("tool_calls", ())]
        length = sum(len(each.get("reasoning_content", "")) for each in self.messages)
        length += sum(len(function["name"]) + len(function["arguments"]) for function in functions)
        if length > limit:
            found = f"have {length} characters in calls and reasoning"
            raise InvalidRequest(too_many_characters("messages", found, limit))
        return self.messages


def conversation_of(messages: Sequence[Message]) -> Conversation:
    """Return the conversation of the messages of a chat."""
    return Conversation(list(with_tool_calls(map(_plain, messages))))


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = message.model_dump(exclude_none=True, exclude={"reasoning"})
    if not message.tool_calls:
        plain.pop("tool_calls", None)
    if reasoning := message.reasoning or message.reasoning_content:
        plain["reasoning_content"] = reasoning
    return plain
