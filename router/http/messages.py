"""Messages of a conversation: their fields, and their form for the chat template."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from fly.errors import InvalidRequest
from router.http.fields import Text
from router.http.parsing import shown
from router.http.request_model import AtMost, RequestModel
from router.json_text import parse_json_text

_CARRIED = ("function_call", "audio", "refusal", "annotations")
_NOTES = ("provider_specific_fields",)
"""Fields that LiteLLM adds to the messages that it returns, and sends back with them."""


def _known_role(value: Any) -> Any:
    if value == "function":
        raise PydanticCustomError("unsupported", "is function: use the role tool", {})
    return "system" if value == "developer" else value


class CalledFunctionFields(RequestModel):
    """A tool that an earlier answer called; the arguments are a JSON object as text."""

    name: str
    arguments: str


class ToolCallFields(RequestModel):
    """A call of an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunctionFields


class Message(RequestModel):
    """One message of a conversation; the role developer counts as system.

    Attributes:
        role: Author.
        content: Its text; may be null in an assistant's message that calls tools.
        name: Name of the author.
        tool_calls: Calls of an assistant's message.
        tool_call_id: Id of the call that a tool's message answers.
        reasoning: Reasoning of an assistant's message.
        reasoning_content: Older name of `reasoning`.
    """

    role: Annotated[
        Literal["system", "user", "assistant", "tool"],
        BeforeValidator(
            _known_role, json_schema_input_type=Literal["system", "developer", "user", "assistant", "tool"]
        ),
    ]
    content: Text
    name: str | None = None
    tool_calls: Annotated[list[ToolCallFields], Field(fail_fast=True), AtMost("items", "calls")] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _has_fields_of_its_role(self) -> Self:
        for field, role in (
            ("tool_calls", "assistant"),
            ("reasoning", "assistant"),
            ("reasoning_content", "assistant"),
            ("tool_call_id", "tool"),
        ):
            if self.role != role and getattr(self, field) is not None:
                raise ValueError(f"has role {self.role} and {field}, which only role {role} may have")
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("has role tool, but no tool_call_id")
        return self


def _without_empty_extras(value: Any) -> Any:
    """Drop empty fields of an assistant's message, which clients send back as they received it."""
    if not isinstance(value, dict):
        return value
    asked = [name for name in _CARRIED if value.get(name)]
    if asked:
        raise PydanticCustomError("unsupported", "has {name}, which is not supported", {"name": asked[0]})
    kept = {key: item for key, item in value.items() if key not in (*_CARRIED, *_NOTES)}
    if kept.get("tool_calls") == []:
        del kept["tool_calls"]
    if kept.get("tool_calls") and kept.get("content") is None:
        kept["content"] = ""
    return kept


Messages = Annotated[
    list[Annotated[Message, BeforeValidator(_without_empty_extras)]],
    Field(fail_fast=True, min_length=1),
    AtMost("items", "messages"),
]
"""A conversation, at least one message."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, whatever the API that it came by.

    Attributes:
        messages: Its messages as chat templates take them, except that arguments of calls are texts.
        argument_fields: Path of the arguments of each call, in the order of the calls.
    """

    messages: Sequence[dict[str, Any]]
    argument_fields: Sequence[str]

    def rendered(self, limit: int, arguments_as_text: bool = False) -> Sequence[dict[str, Any]]:
        """Return the messages as the chat template takes them.

        Args:
            limit: Most characters of all arguments of tool calls and of all reasoning.
            arguments_as_text: Leave arguments as text; else they are objects.

        Raises:
            InvalidRequest: Arguments are no JSON object, or the calls are too long.
        """
        functions = [call["function"] for each in self.messages for call in each.get("tool_calls", ())]
        length = sum(len(each.get("reasoning_content", "")) for each in self.messages)
        length += sum(len(function["name"]) + len(function["arguments"]) for function in functions)
        if length > limit:
            found = f"have {length} characters in calls and reasoning, at most {limit} are allowed"
            raise InvalidRequest.of("messages", f"{found} (router.limits.prompt_characters)")
        for function, field in zip(functions, self.argument_fields, strict=True):
            arguments = _object(function["arguments"], field)
            if not arguments_as_text:
                function["arguments"] = arguments
        return self.messages


def conversation_of(messages: Sequence[Message]) -> Conversation:
    """Return the conversation of the messages of a chat."""
    fields = (
        f"messages[{index}].tool_calls[{number}].function.arguments"
        for index, message in enumerate(messages)
        for number in range(len(message.tool_calls or ()))
    )
    return Conversation([_plain(message) for message in messages], list(fields))


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = message.model_dump(exclude_none=True, exclude={"reasoning"})
    if reasoning := message.reasoning or message.reasoning_content:
        plain["reasoning_content"] = reasoning
    return plain


def _object(text: str, field: str) -> dict[str, Any]:
    try:
        found = parse_json_text(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest.of(field, f"is {shown(text)}, must be a JSON object as text")
    return found
