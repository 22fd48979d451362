"""Calls as Mistral writes them: `[TOOL_CALLS]` and a list of calls, or `name{...}`, or `name[ARGS]{...}`."""

import json
import uuid
from collections.abc import Mapping
from enum import Enum, auto

from flyserve.core.markers import MISTRAL_CALLS
from router.text.growing_text import GrowingText
from router.tools.json_call import ArgumentsReader, CallReader
from router.tools.lark import Write, json_object
from router.tools.parser import ToolParser
from router.tools.parts import Sink

_CALLS, _ = MISTRAL_CALLS
_ARGS, _ID = "[ARGS]", "[CALL_ID]"
_LONGEST_HEAD = 256
_ID_LENGTH = 9
"""Mistral's chat templates reject ids of other lengths."""


class _State(Enum):
    CONTENT = auto()
    HEAD = auto()
    ID = auto()
    LIST = auto()


class Mistral(ToolParser):
    """Parser of Mistral's formats."""

    markers = (_CALLS, _ARGS, _ID)
    separators = ","

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._state = _State.CONTENT
        self._head = ""

    @staticmethod
    def new_id() -> str:
        return uuid.uuid4().hex[:_ID_LENGTH]

    @classmethod
    def opening(cls) -> str:
        return _CALLS

    @classmethod
    def calls_rule(cls, tools: Mapping[str, str], write: Write, parallel: bool) -> str:
        more, again = (' (", " call)*', "+") if parallel else ("", "")
        calls = "\n  | ".join(json_object(name, rule, "arguments") for name, rule in tools.items())
        named = "\n  | ".join(f"{json.dumps(name)} {rule}" for name, rule in tools.items())
        return (
            f'calls: {write(_CALLS)} "[" call{more} "]"\n  | item{again}\n'
            f"item: {write(_CALLS)} named\ncall: {calls}\nnamed: {named}\n"
        )

    def _outside(self, text: str) -> str:
        if self._state is _State.CONTENT:
            self._sink.content(text)
            return ""
        char = text[0]
        taken = self._in_list(char) if self._state is _State.LIST else self._in_head(char)
        if not taken:
            self._give_back()
        return text if self._reader is not None or not taken else text[1:]

    def _in_list(self, char: str) -> bool:
        """Take a character between the calls of a list; return False if it has no place there."""
        if char == "]" and str(self._raw).startswith(_CALLS):
            return False  # a list without a call
        if char == "]":
            self._state = _State.CONTENT
            self._raw.take()
            self._sink.end_content()
        elif char == "{":
            self._reader = CallReader(self._sink)
        elif char == "," or char.isspace():
            self._raw.add(char)
        else:
            return False
        return True

    def _in_head(self, char: str) -> bool:
        """Take a character before a call's arguments; return False if no call can begin so."""
        if len(self._raw) >= _LONGEST_HEAD:
            return False
        if char == "{":
            self._reader = ArgumentsReader(self._sink, self._head.strip())
            return True
        if char == "[" and not self._head.strip() and self._state is _State.HEAD:
            self._state = _State.LIST
        elif self._state is _State.HEAD:
            self._head += char
        self._raw.add(char)
        return True

    def _on_marker(self, marker: str) -> None:
        if marker == _CALLS:
            self._give_back()
            self._state, self._head, self._raw = _State.HEAD, "", GrowingText(marker)
        elif self._state in (_State.HEAD, _State.ID) and self._head.strip():
            self._state = _State.ID
            self._raw.add(marker)
        else:
            self._give_back()
            self._sink.content(marker)

    def _ended(self) -> None:
        if self._state is not _State.LIST:
            self._state = _State.CONTENT

    def _reset(self) -> None:
        self._state = _State.CONTENT
