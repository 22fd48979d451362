"""Parser of tool calls: the interface of all formats, and what they share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from router.text.growing_text import GrowingText
from router.tools.json_call import Reader, Step
from router.tools.lark import ArgumentsRule, Write
from router.tools.parts import Sink, new_call_id


class ToolParser(ABC):
    """State machine that is fed with the text and the markers of one message, in any pieces.

    Everything that is no call reaches the sink as content. What looked like a call and is none is given back
    as content, too, unless the call had begun: then only the rest is.

    Attributes:
        markers: Markers of the format.
        separators: Characters between calls.
        has_one_call: True if chat templates of this family refuse a message with several calls.
        has_channels: True if calls are in the channels of GPT-OSS.
    """

    markers: ClassVar[tuple[str, ...]] = ()
    separators: ClassVar[str] = ""
    has_one_call: ClassVar[bool] = False
    has_channels: ClassVar[bool] = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._reader: Reader | None = None
        self._raw = GrowingText()
        """Text since the last content, while no call has begun."""

    @staticmethod
    def new_id() -> str:
        """Return a new id of a call."""
        return new_call_id()

    @classmethod
    @abstractmethod
    def calls_rule(cls, tools: Mapping[str, str], write: Write, parallel: bool) -> str:
        """Return a grammar with the rule `calls`: one call or, if `parallel`, one after the other.

        Args:
            tools: Reference to the arguments, by the name of the tool.
            write: Notation of a marker.
            parallel: Allow several calls.
        """

    @classmethod
    def arguments_rule(cls, rule: str, schema: Any, write: Write) -> ArgumentsRule:
        """Return the arguments of one tool in a grammar; `rule` is a name that is free for them."""
        return ArgumentsRule(f"@{rule}", schemas={rule: schema})

    @classmethod
    @abstractmethod
    def opening(cls) -> str:
        """Return the marker that begins the calls; "" if they begin with their JSON."""

    @property
    def num_withheld(self) -> int:
        """Characters that may become content: no call has begun with them yet."""
        has_begun = self._reader is not None and self._reader.has_begun
        return 0 if has_begun else len(self._raw)

    def push(self, text: str) -> None:
        """Add text without markers."""
        while text:
            text = self._outside(text) if self._reader is None else self._inside(self._reader, text)

    def mark(self, marker: str) -> None:
        """Add a marker."""
        reader = self._reader
        if reader is not None and reader.takes(marker):
            self.push(self._inside(reader, marker))
            return
        if reader is not None:
            self._give_back()
        self._on_marker(marker)

    def take_header(self, header: str) -> bool:
        """Begin the call that the header of a channel is for; return False if it is for no known tool."""
        return False

    def finish(self) -> None:
        """End the message; drop what separates calls if none follows."""
        if self._sink.has_calls and not str(self._raw).strip(f"{self.separators} \n"):
            self._raw.take()
        self._give_back()

    @abstractmethod
    def _outside(self, text: str) -> str:
        """Take some text that is not within a call's JSON; return the rest."""

    @abstractmethod
    def _on_marker(self, marker: str) -> None:
        """Take a marker outside of a call's JSON."""

    @abstractmethod
    def _ended(self) -> None:
        """Continue after the JSON of a call."""

    @abstractmethod
    def _reset(self) -> None:
        """Continue with content."""

    def _inside(self, reader: Reader, text: str) -> str:
        """Read a call's JSON; return the text after it."""
        for index, char in enumerate(text):
            step = reader.push(char)
            if step is Step.BAD:
                self._raw.add(text[:index])
                self._give_back()
                return text[index:]
            if step is Step.END:
                self._reader = None
                self._raw.take()
                self._sink.end()
                self._ended()
                return text[index + 1 :]
        if not reader.has_begun:
            self._raw.add(text)
        return ""

    def _give_back(self) -> None:
        """Return what was no call to the content; a call that lacks no more than its brace ends."""
        reader, raw, self._reader = self._reader, self._raw.take(), None
        if reader is not None and reader.is_whole:
            self._sink.end()
            self._ended()
            return
        self._reset()
        if raw and not (reader is not None and reader.has_begun):
            self._sink.content(raw)
