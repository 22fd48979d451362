"""Older fields of chats: `functions`, `function_call` and the role `function`, served as tools.

A message has one call at most then, in `function_call`, and the call has no id.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from flyserve.core.errors import InvalidRequest
from router.http.chat_objects import ChatChoice
from router.http.request_model import AtMost
from router.http.tool_choice import FunctionChoice, NamedFunction, choice_of
from router.http.tool_fields import AskedTools, FunctionFields, ToolFields

NAMES = {"tools": "functions", "tool_choice": "function_call"}
"""Names of the older fields by those that have replaced them."""


class OlderToolFields(ToolFields):
    """Fields about tools, and their older names.

    Attributes:
        functions: The older form of `tools`; a request has one of them.
        function_call: The older form of `tool_choice`: `auto`, `none`, or a function by its name.
    """

    functions: Annotated[list[FunctionFields], AtMost("tools", "functions")] | None = None
    function_call: FunctionChoice | None = None

    @property
    def has_functions(self) -> bool:
        """True if the older fields are used."""
        return bool(self.functions) or isinstance(self.function_call, NamedFunction)

    @property
    def asked_tools(self) -> AskedTools:
        if not self.has_functions:
            return super().asked_tools
        if self.tools:
            raise InvalidRequest.of("functions", "must not be set with tools: use tools alone")
        return AskedTools(
            functions={f"functions[{at}]": each for at, each in enumerate(self.functions or ())},
            choice=choice_of(self.function_call),
            parallel=False,
        )


def with_tool_calls(messages: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a chat with calls of tools in place of calls of functions.

    The id of a call follows from its place, so equal conversations have equal prompts. It has the length that
    Mistral's templates demand.
    """
    last = ""
    for index, message in enumerate(messages):
        others = {name: value for name, value in message.items() if name != "function_call"}
        if called := message.get("function_call"):
            last = _id(index)
            call = {"id": last, "type": "function", "function": called}
            yield {**others, "tool_calls": [*message.get("tool_calls", ()), call]}
        elif message["role"] == "function":
            yield {**others, "role": "tool", "tool_call_id": last or _id(index)}
        else:
            yield others


def _id(index: int) -> str:
    return f"call{index:05}"


def with_function_call(choice: Any) -> Any:
    """Return a choice, or its part in a chunk, whose call is in the older form."""
    name = "message" if isinstance(choice, ChatChoice) else "delta"
    message = getattr(choice, name)
    kept = {each: getattr(message, each) for each in message.model_fields_set - {"tool_calls"}}
    if message.tool_calls:
        kept["function_call"] = message.tool_calls[0].function
    reason = "function_call" if choice.finish_reason == "tool_calls" else choice.finish_reason
    return choice.model_copy(update={name: type(message)(**kept), "finish_reason": reason})
