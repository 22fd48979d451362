"""One message: reasoning, content and tool calls, from decided tokens one by one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flyserve.core.markers import Markers
from router.text.growing_text import GrowingText
from router.text.stop_strings import StopStrings
from router.tools.argument_types import ArgumentTypes
from router.tools.channels import CHANNELS, LABELS, LONGEST_HEADER, MESSAGE, is_call, is_reasoning
from router.tools.content_tokens import ContentTokens
from router.tools.parser import ToolParser
from router.tools.parts import Parts, Sink, join_parts, new_call_id
from router.tools.symbols import Symbol, Symbols


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """Format of the messages of one request.

    Attributes:
        parser: Format of tool calls; None if all text is content.
        tools: JSON Schema of the arguments of each tool that may be called, by its name.
        reasoning: Markers of reasoning, which is split from the content; None if it is not.
        is_thinking: True if the prompt ends within a block of reasoning.
        parallel: True if a message may have several calls.
        keeps_reasoning: False drops the reasoning.
        markers: Token of each marker; None if the vocabulary has none.
        new_id: Makes the ids of calls; by default as the format requires.
        tracks_tokens: True if the parts of a message show which tokens are content.
        has_channels: True if reasoning and answer are in channels, as GPT-OSS writes them.
        types: Types of the arguments of the tools.
    """

    parser: type[ToolParser] | None = None
    tools: Mapping[str, Any] = field(default_factory=dict)
    reasoning: Markers | None = None
    is_thinking: bool = False
    parallel: bool = True
    keeps_reasoning: bool = True
    markers: Mapping[str, int | None] | None = None
    new_id: Callable[[], str] | None = None
    tracks_tokens: bool = False
    has_channels: bool = False
    types: ArgumentTypes = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", ArgumentTypes(self.tools))


class Message:
    """One message: it decides to which part each text belongs.

    The result is the same however its tokens are cut into rounds. A stop string in the content ends it.
    """

    def __init__(self, form: MessageFormat, stops: StopStrings) -> None:
        new_id = form.new_id or (new_call_id if form.parser is None else form.parser.new_id)
        self._stops = stops
        self._sink = Sink(form.types, new_id, form.parallel, stops)
        self._calls = None if form.parser is None else form.parser(self._sink)
        known = form.markers or {}
        self._symbols = Symbols({marker: known.get(marker) for marker in markers_of(form)})
        self._keeps_reasoning = form.keeps_reasoning
        self._opening, self._closing = form.reasoning or ("", "")
        self._may_think = form.reasoning is not None and not form.is_thinking
        self._is_thinking = form.reasoning is not None and form.is_thinking
        self._label = LABELS.get(self._opening, "")
        self._has_channels = form.has_channels
        self._header: str | None = None
        """Header of a channel, while it is written."""
        self._thought, self._white = "", GrowingText()
        self._reasoning_tokens = 0
        self._tokens = ContentTokens() if form.tracks_tokens else None
        self._settled: list[Parts] = []

    def push(self, token: int, text: str) -> bool:
        """Add a decided token with its text; return True if a stop string has ended the message."""
        self._reasoning_tokens += self._is_thinking
        self._take(self._symbols.push(token, text))
        if self._tokens is not None:
            self._tokens.push(self._symbols.text_of(token, text))
            if not self._stops.is_found:
                self._settle(self._tokens)
        return self._stops.is_found

    def finish(self, text: str) -> None:
        """End the message with the last text, which belongs to no token."""
        self._take(self._symbols.push_text(text))
        self._take(self._symbols.flush())
        header = self._header or ""
        words = header.split()
        is_of_call = is_call(header) or (bool(words) and "to=".startswith(words[-1]))
        is_text = len(words) > 1 and not is_of_call  # of a model that has left out the marker
        if rest := header if is_text else self._white.take():
            self._header = None
            self._answer(Symbol(rest))
        if self._calls is not None:
            self._calls.finish()
        self._sink.flush()
        if self._tokens is not None:
            found = self._sink.take()
            self._settled.append(replace(found, are_content=tuple(self._tokens.finish(text, found.content))))

    def take(self) -> Parts:
        """Return the parts that were found since the last call."""
        reasoning_tokens, self._reasoning_tokens = self._reasoning_tokens, 0
        settled, self._settled = self._settled, []
        found = self._sink.take()
        found = join_parts((*settled, found)) if settled else found
        return replace(found, reasoning_tokens=reasoning_tokens)

    def _settle(self, tokens: ContentTokens) -> None:
        """Decide the part of the tokens whose text has left the message."""
        parser = self._calls
        num_withheld = self._symbols.num_withheld + len(self._white) + self._sink.num_withheld
        num_withheld += len(self._header or "") + (0 if parser is None else parser.num_withheld)
        found = self._sink.take()
        are_content = tuple(tokens.settle(num_withheld, found.content))
        self._settled.append(replace(found, are_content=are_content))

    def _take(self, symbols: Iterable[Symbol]) -> None:
        for symbol in symbols:
            if self._stops.is_found:
                return
            if self._has_channels and (self._header is not None or _is_of_channels(symbol)):
                self._read_header(symbol)
            elif self._is_thinking:
                self._think(symbol)
            elif self._may_think:
                self._begin(symbol)
            elif self._opening in LABELS and symbol == Symbol(self._opening, is_marker=True):
                self._sink.turn()
                self._is_thinking, self._label = True, LABELS[self._opening]
            else:
                self._answer(symbol)

    def _read_header(self, symbol: Symbol) -> None:
        """Take a symbol of a channel's header: a marker ends the text before it, the last one the header."""
        if self._header is None:
            self._end_thought()
            if self._calls is not None:
                self._calls.finish()
        is_last = symbol == Symbol(MESSAGE, is_marker=True)
        gap = " " if is_call(self._header or "") and not is_last else ""
        header = (self._header or "") + (gap if symbol.is_marker else symbol.text)
        is_text = len(header) > LONGEST_HEADER
        is_over = is_text or is_last
        self._header = None if is_over else header
        if is_over and (is_text or is_call(header)):
            is_taken = not is_text and self._calls is not None and self._calls.take_header(header)
            if not is_taken:
                self._answer(Symbol(header))
        elif is_over:
            self._is_thinking = is_reasoning(header)

    def _think(self, symbol: Symbol) -> None:
        if symbol == Symbol(self._closing, is_marker=True):
            self._end_thought()
        elif self._keeps_reasoning:
            self._thought += symbol.text
            if len(self._thought) < len(self._label) and self._label.startswith(self._thought):
                return
            self._sink.reasoning(self._thought.removeprefix(self._label))
            self._thought = self._label = ""

    def _end_thought(self) -> None:
        self._is_thinking = False
        self._sink.turn()

    def _begin(self, symbol: Symbol) -> None:
        """Take the first symbols: reasoning begins before any text, or not at all."""
        if not symbol.is_marker and not symbol.text.strip():
            self._white.add(symbol.text)
            return
        white, self._may_think = self._white.take(), False
        if symbol == Symbol(self._opening, is_marker=True):
            self._is_thinking = True
            return
        if white:
            self._answer(Symbol(white))
        self._answer(symbol)

    def _answer(self, symbol: Symbol) -> None:
        if self._calls is None:
            self._sink.content(symbol.text)
        elif symbol.is_marker and symbol.text in self._calls.markers:
            self._calls.mark(symbol.text)
        else:
            self._calls.push(symbol.text)


def _is_of_channels(symbol: Symbol) -> bool:
    return symbol.is_marker and symbol.text in CHANNELS


def markers_of(form: MessageFormat) -> Sequence[str]:
    """Return the markers that the parser of a format looks for."""
    channels = CHANNELS if form.has_channels else ()
    return (*(form.reasoning or ()), *channels, *(form.parser.markers if form.parser else ()))
