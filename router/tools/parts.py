"""Parts of an assistant's message: content, reasoning and tool calls; and their collector."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from router.json_text import is_json_object
from router.text.growing_text import GrowingText
from router.text.stop_strings import StopStrings
from router.tools.argument_types import ArgumentTypes


@dataclass(frozen=True, slots=True)
class CallPart:
    """New part of one tool call.

    Attributes:
        index: Index of the call in its message, from 0.
        id: Id of the call, in its first part; else empty.
        name: Name of the tool, in the first part; else empty.
        arguments: Next characters of the arguments, which are a JSON object.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """New parts of one message, or all of them.

    Attributes:
        content: Text for the reader.
        reasoning: Text of the reasoning.
        calls: Parts of tool calls, one for each call that has any.
        has_whole_calls: True if the message up to here has calls, and the arguments of each are whole.
        reasoning_tokens: Tokens of the reasoning, its end included.
        are_content: For each of the next tokens whose part is decided, True if it is one of the content;
            only where the format of the message tracks them.
        mixed: Content and calls in their order, if there are both; else empty.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    has_whole_calls: bool = False
    reasoning_tokens: int = 0
    are_content: tuple[bool, ...] = ()
    mixed: tuple[str | CallPart, ...] = ()

    @property
    def in_order(self) -> tuple[str | CallPart, ...]:
        """Content and calls in their order."""
        return self.mixed or (*((self.content,) if self.content else ()), *self.calls)


def join_parts(all_parts: Iterable[Parts]) -> Parts:
    """Return the message that consists of these parts, with one entry for each call."""
    parts = list(all_parts)
    content = "".join(each.content for each in parts)
    calls = _joined(call for each in parts for call in each.calls)
    return Parts(
        content=content,
        reasoning="".join(each.reasoning for each in parts),
        calls=calls,
        has_whole_calls=bool(parts) and parts[-1].has_whole_calls,
        reasoning_tokens=sum(each.reasoning_tokens for each in parts),
        are_content=tuple(flag for each in parts for flag in each.are_content),
        mixed=tuple(_mixed(parts)) if content and calls else (),
    )


def _mixed(parts: Iterable[Parts]) -> Iterator[str | CallPart]:
    """Yield content and calls in their order, what is next to each other as one."""
    found = (piece for each in parts for piece in each.in_order)
    for index, pieces in groupby(found, lambda piece: piece.index if isinstance(piece, CallPart) else None):
        if index is None:
            yield "".join(map(str, pieces))
        else:
            yield from _joined(piece for piece in pieces if isinstance(piece, CallPart))


def _joined(parts: Iterable[CallPart]) -> tuple[CallPart, ...]:
    """Return one entry for each call. Its first part here has its id and name, if they are here at all."""
    first: dict[int, CallPart] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        first.setdefault(part.index, part)
        arguments.setdefault(part.index, []).append(part.arguments)
    return tuple(replace(part, arguments="".join(arguments[index])) for index, part in first.items())


class _Trimmed:
    """Text without the white space next to a marker, which is withheld until other text follows."""

    def __init__(self, is_beside: bool) -> None:
        self._held = GrowingText()
        self._has_text = False
        self._is_beside = is_beside

    @property
    def num_withheld(self) -> int:
        return len(self._held)

    def push(self, text: str) -> str:
        if self._is_beside and not self._has_text:
            text = text.lstrip()
        if not text.strip():
            self._held.add(text)
            return ""
        self._has_text, self._is_beside = True, False
        text = self._held.take() + text
        free = text.rstrip()
        self._held.add(text[len(free) :])
        return free

    def cut(self) -> None:
        """Drop the white space before a marker, and that after it if no text comes before or after."""
        self._held.take()
        self._is_beside = True

    def flush(self) -> str:
        held = self._held.take()
        return "" if self._is_beside else held


def new_call_id() -> str:
    """Return a new id of a call, as OpenAI makes them."""
    return f"call_{uuid.uuid4().hex[:24]}"


class Sink:
    """Collector of the parts that a parser finds. A stop string in the content ends them.

    Attributes:
        tools: Tools that may be called, and the types of their arguments.
    """

    def __init__(
        self,
        tools: ArgumentTypes,
        new_id: Callable[[], str] = new_call_id,
        parallel: bool = True,
        stops: StopStrings | None = None,
    ) -> None:
        """Drop all calls after the first one unless `parallel`."""
        self.tools = tools
        self._new_id = new_id
        self._most_calls = None if parallel else 1
        self._stops = stops or StopStrings()
        self._num_calls = self._num_whole = 0
        self._arguments: list[str] = []
        """Arguments of the last call."""
        self._content, self._reasoning = _Trimmed(is_beside=False), _Trimmed(is_beside=True)
        self._is_beside_marker = False
        self._parts: list[Parts] = []

    @property
    def has_calls(self) -> bool:
        """True if a call has begun."""
        return bool(self._num_calls)

    @property
    def num_withheld(self) -> int:
        """Characters of the content that are withheld."""
        return self._content.num_withheld + self._stops.num_withheld

    def content(self, text: str) -> None:
        """Add content. White space next to a marker belongs to the marker: no stop string is found in it."""
        if self._stops.is_found:
            return
        if self._is_beside_marker:
            rest = text.lstrip()
            white, text = text[: len(text) - len(rest)], rest
            self._parts.append(Parts(content=self._content.push(white)))
        if text:
            self._is_beside_marker = False
            self._stops.push(text)
            self._parts.append(Parts(content=self._content.push(self._stops.take())))

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._parts.append(Parts(reasoning=self._reasoning.push(text)))

    def turn(self) -> None:
        """Take note of a marker of reasoning."""
        self.end_content()
        self._reasoning.cut()

    def start(self, name: str) -> None:
        """Begin a call."""
        if self._stops.is_found:
            return
        self.end_content()
        self._num_calls += 1
        self._arguments = []
        if self._is_kept:
            self._parts.append(Parts(calls=(CallPart(self._num_calls - 1, self._new_id(), name),)))

    def arguments(self, text: str) -> None:
        """Add to the arguments of the last call."""
        if self._is_kept and not self._stops.is_found:
            self._arguments.append(text)
            self._parts.append(Parts(calls=(CallPart(self._num_calls - 1, arguments=text),)))

    def end(self) -> None:
        """End the last call; it is whole if its arguments are a JSON object."""
        self._is_beside_marker = True
        if self._is_kept and not self._stops.is_found:
            self._num_whole += is_json_object("".join(self._arguments))

    def flush(self) -> None:
        """Release what was withheld, at the end of the response."""
        content = self._content.push(self._stops.flush()) + self._content.flush()
        self._parts.append(Parts(content, self._reasoning.flush()))

    def take(self) -> Parts:
        """Return what was found since the last call."""
        taken, self._parts = self._parts, []
        num_kept = min(self._num_calls, self._most_calls or self._num_calls)
        return replace(join_parts(taken), has_whole_calls=0 < num_kept == self._num_whole)

    @property
    def _is_kept(self) -> bool:
        """True if the last call is one of the message."""
        return self._most_calls is None or self._num_calls <= self._most_calls

    def end_content(self) -> None:
        """Release the content before a marker, without the white space beside it."""
        self._parts.append(Parts(content=self._content.push(self._stops.flush())))
        self._content.cut()
        self._is_beside_marker = True
