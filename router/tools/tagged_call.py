"""Read a call whose arguments are text between tags, character by character; they become JSON."""

import json
from collections.abc import Generator
from dataclasses import dataclass

from flyserve.core.markers import Markers
from router.tools.argument_types import ANY, STRING, json_of
from router.tools.json_call import Step
from router.tools.parts import Sink

_LONGEST_NAME = 1024
"""Characters of the name of a tool or an argument after which it is no call."""
_Characters = Generator[None, str, str]
"""Coroutine that is sent characters and returns a text."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Texts around the parts of a call. White space between them does not count.

    Attributes:
        name: Text before the name of the tool, and texts that may come after it.
        key: Texts around the name of an argument.
        value: Texts around its value.
        has_lines: True if a value has a line break before and after it that are not part of it.
        end: Texts that may end the call.
    """

    name: tuple[str, tuple[str, ...]]
    key: Markers
    value: Markers
    has_lines: bool
    end: tuple[str, ...]


class _NoCallError(Exception):
    """A character that cannot belong to a call."""


class TaggedReader:
    """Reader of a call, from the text after its first marker to one of the tags that end it.

    The call begins when its name is known. The arguments that are text by their schema arrive as they are
    written, the other ones when they end.
    """

    def __init__(self, sink: Sink, tags: Tags) -> None:
        self.has_begun = False
        self._sink = sink
        self._tags = tags
        self._is_text = False
        self._expected: tuple[str, ...] = ()
        """Tags that may come next, also within text."""
        self._read = ""
        """Characters of the next tag that were read."""
        self._steps = self._call()
        next(self._steps)

    def takes(self, marker: str) -> bool:
        return self._is_text or (not self._read and marker in self._expected)

    @property
    def is_whole(self) -> bool:
        return False

    def push(self, char: str) -> Step:
        try:
            self._steps.send(char)
        except StopIteration:
            return Step.END
        except _NoCallError:
            return Step.BAD
        return Step.MORE

    def _call(self) -> Generator[None, str, None]:
        before, after = self._tags.name
        if before:
            yield from self._tag(before)
        name, found = yield from self._name(*after)
        if name not in self._sink.tools:
            raise _NoCallError
        self.has_begun = True
        self._sink.start(name)
        types = self._sink.tools[name]
        separator = "{"
        following = (self._tags.key[0], *self._tags.end)
        while True:
            if found not in following:
                found = yield from self._tag(*following)
            if found in self._tags.end:
                break
            key, found = yield from self._name(self._tags.key[1])
            self._sink.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            if self._tags.value[0]:
                yield from self._tag(self._tags.value[0])
            yield from self._value(types.get(key, ANY))
            found = ""
        self._sink.arguments("{}" if separator == "{" else "}")

    def _tag(self, *tags: str) -> _Characters:
        """Read white space and one of some tags; return the tag."""
        self._expected, self._read = tags, ""
        while self._read not in tags:
            char = yield
            if self._read or not char.isspace():
                self._read += char
            if not any(tag.startswith(self._read) for tag in tags):
                raise _NoCallError
        found, self._read = self._read, ""
        return found

    def _name(self, *ends: str) -> Generator[None, str, tuple[str, str]]:
        """Read a name and the tag after it; return both."""
        self._expected, text = ends, ""
        while not (end := next((each for each in ends if text.endswith(each)), "")):
            char = yield
            if text or not char.isspace():
                text += char
            if len(text) > _LONGEST_NAME:
                raise _NoCallError
        return text.removesuffix(end).strip(), end

    def _value(self, types: frozenset[str]) -> Generator[None, str, None]:
        """Read a value and the tag after it, and write its JSON."""
        self._is_text = True
        end = self._tags.value[1]
        line = "\n" if self._tags.has_lines else ""
        text, num_read = "", 0
        is_string = types == STRING
        if is_string:
            self._sink.arguments('"')
        while not text.endswith(end):
            char = yield
            num_read += 1
            if num_read > 1 or char != line:
                text += char
            if is_string and (free := _num_free(text, line + end, end)):
                self._sink.arguments(_escaped(text[:free]))
                text = text[free:]
        self._is_text = False
        text = text.removesuffix(end).removesuffix(line)
        self._sink.arguments(f'{_escaped(text)}"' if is_string else json_of(text, types))


def _num_free(text: str, *tags: str) -> int:
    """Return the number of the first characters of a text after which one of some tags may begin, or be."""
    if not any(tag[0] in text for tag in tags):
        return len(text)
    return min(
        next((start for start in range(len(text)) if tag.startswith(text[start:])), len(text)) for tag in tags
    )


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
