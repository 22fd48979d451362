"""Read the JSON of a tool call character by character, and report the call as soon as it is known."""

import json
from enum import Enum, auto
from typing import Protocol

from router.text.growing_text import GrowingText
from router.tools.parts import Sink

_WHITE = " \t\r\n"
_LONGEST_NAME = 1024
"""Characters of a quoted key or name after which it is no call."""


class Step(Enum):
    """State after a character."""

    MORE = auto()
    """The value goes on."""
    END = auto()
    """It ends with this character."""
    PAST = auto()
    """It ended before this character."""
    BAD = auto()
    """This character cannot belong to it."""


class JsonValue:
    """Find the end of one JSON value. It checks strings and brackets, not everything else."""

    def __init__(self) -> None:
        self.in_string = False
        self._escaped = False
        self._begun = False
        self._closers: list[str] = []

    def push(self, char: str) -> Step:
        """Add a character."""
        if self.in_string:
            return self._push_in_string(char)
        if not self._closers and char in ",]}" + _WHITE:
            if self._begun:
                return Step.PAST
            return Step.MORE if char in _WHITE else Step.BAD
        if char == '"' and self._begun and not self._closers:
            return Step.BAD
        self._begun = True
        if char in "]}":
            if self._closers.pop() != char:
                return Step.BAD
            return Step.MORE if self._closers else Step.END
        self.in_string = char == '"'
        if char in "[{":
            self._closers.append("]" if char == "[" else "}")
        return Step.MORE

    def _push_in_string(self, char: str) -> Step:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self.in_string = False
            return Step.MORE if self._closers else Step.END
        return Step.MORE


class Reader(Protocol):
    """Reader of one call.

    Attributes:
        has_begun: True once the call is reported; from then on its text is no content.
    """

    has_begun: bool

    def takes(self, marker: str) -> bool:
        """Return True if a marker is part of the call here: text of a string, or a tag of the format."""
        ...

    @property
    def is_whole(self) -> bool:
        """True once the call has all its arguments, although its text may go on."""
        ...

    def push(self, char: str) -> Step:
        """Add a character; the reader never returns `PAST`."""
        ...


class ArgumentsReader:
    """Reader of the arguments of a tool whose name is known: a JSON object."""

    def __init__(self, sink: Sink, name: str) -> None:
        self.has_begun = False
        self._sink = sink
        self._name = name
        self._value = JsonValue()

    def takes(self, marker: str) -> bool:
        return self._value.in_string

    @property
    def is_whole(self) -> bool:
        return False

    def push(self, char: str) -> Step:
        if not self.has_begun:
            if char in _WHITE:
                return Step.MORE
            if char != "{" or self._name not in self._sink.tools:
                return Step.BAD
            self.has_begun = True
            self._sink.start(self._name)
        step = self._value.push(char)
        if step is not Step.BAD:
            self._sink.arguments(char)
        return step


class CallReader:
    """Reader of an object with the name of a tool and its arguments, in any order, among other fields.

    The call begins when its name is known and its arguments begin, or the object ends without any.
    """

    def __init__(self, sink: Sink) -> None:
        self.has_begun = False
        self._sink = sink
        self._expects = self._object
        self._name: str | None = None
        self._key = ""
        self._text = ""
        self._value = JsonValue()
        self._early = GrowingText()
        """Arguments that came before the name."""
        self._arguments: str | None = None

    def takes(self, marker: str) -> bool:
        return self._value.in_string

    @property
    def is_whole(self) -> bool:
        return self.has_begun and self._arguments is not None

    def push(self, char: str) -> Step:
        return self._expects(char)

    def _object(self, char: str) -> Step:
        if char in _WHITE:
            return Step.MORE
        self._expects = self._key_or_end
        return Step.MORE if char == "{" else Step.BAD

    def _key_or_end(self, char: str) -> Step:
        if char == "}":
            return self._end()
        if char in _WHITE:
            return Step.MORE
        self._value, self._text = JsonValue(), ""
        self._expects = self._in_key
        return self._in_key(char) if char == '"' else Step.BAD

    def _in_key(self, char: str) -> Step:
        self._text += char
        if self._value.push(char) is Step.END:
            self._key = _string(self._text) or ""
            self._expects = self._colon
        return Step.MORE if len(self._text) <= _LONGEST_NAME else Step.BAD

    def _colon(self, char: str) -> Step:
        if char in _WHITE:
            return Step.MORE
        self._value, self._text = JsonValue(), ""
        self._expects = self._in_value
        return Step.MORE if char == ":" else Step.BAD

    def _in_value(self, char: str) -> Step:
        if not self._text and char in _WHITE:
            return Step.MORE
        has_arguments = self._key in ("arguments", "parameters") and self._arguments is None
        if not self._text and has_arguments and char != "{":
            return Step.BAD
        step = self._value.push(char)
        if step is Step.BAD:
            return step
        if step is not Step.PAST:
            self._text = char if has_arguments or self._key != "name" else self._text + char
        if has_arguments:
            return self._take_argument(char, is_last=step is Step.END)
        if step is not Step.MORE:
            return self._end_value(char, step)
        return Step.BAD if len(self._text) > _LONGEST_NAME else Step.MORE

    def _take_argument(self, char: str, is_last: bool) -> Step:
        self._begin()
        if self.has_begun:
            self._sink.arguments(char)
        else:
            self._early.add(char)
        if is_last:
            self._arguments = self._early.take()
            self._expects = self._comma
        return Step.MORE

    def _end_value(self, char: str, step: Step) -> Step:
        if self._key == "name":
            name = _string(self._text)
            if self._name is not None or name not in self._sink.tools:
                return Step.BAD
            self._name = name
        self._expects = self._comma
        return self._comma(char) if step is Step.PAST else Step.MORE

    def _comma(self, char: str) -> Step:
        if char in _WHITE:
            return Step.MORE
        if char == "}":
            return self._end()
        self._expects = self._key_or_end
        return Step.MORE if char == "," else Step.BAD

    def _begin(self) -> None:
        if self._name is not None and not self.has_begun:
            self.has_begun = True
            self._sink.start(self._name)

    def _end(self) -> Step:
        if self._name is None:
            return Step.BAD
        if not self.has_begun:
            self._begin()
            self._sink.arguments(self._arguments or "{}")
        return Step.END


def _string(text: str) -> str | None:
    """Return the value of a JSON string; None if the text is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
