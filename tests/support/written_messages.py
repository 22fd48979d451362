"""Messages of a model that writes given tokens, for the tests of their parts."""

from collections.abc import Sequence
from itertools import count

from router.text.stop_strings import StopStrings
from router.tools.families import PARSERS, ToolFamily
from router.tools.message import Message, MessageFormat
from router.tools.parts import Parts, join_parts

F = ("f", '{"a": "</tool_call> {\\" é"}')
G = ("g", "{}")
TOOLS = {
    "f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}}},
    "g": {},
}


def parsed(form: MessageFormat, tokens: Sequence[tuple[int, str]], cuts: Sequence[int]) -> Parts:
    """Return the message whose tokens arrive in rounds that end at `cuts`."""
    return written(form, tokens, cuts)[0]


def written(
    form: MessageFormat, tokens: Sequence[tuple[int, str]], cuts: Sequence[int], stops: Sequence[str] = ()
) -> tuple[Parts, int]:
    """Return the message, and the number of its tokens: it may end with a stop string."""
    message, found, length = Message(form, StopStrings(stops)), list[Parts](), 0
    for length, (token, text) in enumerate(tokens, start=1):
        is_over = message.push(token, text)
        if is_over or length in cuts:
            found.append(message.take())
        if is_over:
            break
    message.finish("")
    return join_parts([*found, message.take()]), length


def form_of(family: ToolFamily, **fields: object) -> MessageFormat:
    ids = count()
    return MessageFormat(PARSERS[family], TOOLS, new_id=lambda: f"c{next(ids)}", **fields)  # type: ignore[arg-type]
