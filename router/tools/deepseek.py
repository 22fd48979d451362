"""Calls as DeepSeek V3, R1 and V3.1 write them, with the model's own special tokens."""

import json
import re
from collections.abc import Mapping
from enum import Enum, auto

from flyserve.core.markers import DEEPSEEK_CALLS
from router.tools.json_call import ArgumentsReader
from router.tools.lark import Write
from router.tools.parser import ToolParser
from router.tools.parts import Sink

_CALLS, _END_CALLS = DEEPSEEK_CALLS
_CALL, _END_CALL, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"  # noqa: RUF001
_LONGEST_HEAD = 512
_FENCED = re.compile(r"\s*([^\n]+)\n```(?:json)?\s*")
"""Name and beginning of the arguments in V3 and R1, whose head is the word `function`."""


class _State(Enum):
    CONTENT = auto()
    BETWEEN = auto()
    HEAD = auto()
    BODY = auto()
    TAIL = auto()


class DeepSeek(ToolParser):
    """Parser of DeepSeek's formats."""

    markers = (_CALLS, _END_CALLS, _CALL, _END_CALL, _SEP)
    separators = "`"

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._state = _State.CONTENT
        self._head = self._body = ""

    @classmethod
    def opening(cls) -> str:
        return _CALLS

    @classmethod
    def calls_rule(cls, tools: Mapping[str, str], write: Write, parallel: bool) -> str:
        more = r' ("\n"? call)*' if parallel else ""
        before, after = json.dumps("\n```json\n"), json.dumps("\n```")
        named = "\n  | ".join(
            f"{json.dumps(name)} {write(_SEP)} {rule}\n"
            f'  | "function" {write(_SEP)} {json.dumps(name)} {before} {rule} {after}'
            for name, rule in tools.items()
        )
        return (
            f"calls: {write(_CALLS)} call{more} {write(_END_CALLS)}\n"
            f"call: {write(_CALL)} named {write(_END_CALL)}\nnamed: {named}\n"
        )

    def _outside(self, text: str) -> str:
        if self._state is _State.CONTENT:
            self._sink.content(text)
            return ""
        char = text[0]
        if self._state is _State.BODY and char == "{":
            self._reader = ArgumentsReader(self._sink, self._name())
            return text
        if not self._takes(char):
            self._give_back()
            return text
        self._raw.add(char)
        return text[1:]

    def _takes(self, char: str) -> bool:
        """Take a character outside of the JSON; return False if it has no place there."""
        if self._state not in (_State.HEAD, _State.BODY):
            return char.isspace() or (char == "`" and self._state is _State.TAIL)
        if self._state is _State.HEAD:
            self._head += char
        else:
            self._body += char
        return len(self._head) + len(self._body) <= _LONGEST_HEAD

    def _name(self) -> str:
        """Return the name of the tool; an unknown one ends the call."""
        if not self._body.strip():
            return self._head.strip()
        found = _FENCED.fullmatch(self._body)
        return found[1].strip() if found else ""

    def _on_marker(self, marker: str) -> None:
        following = {
            (_State.CONTENT, _CALLS): _State.BETWEEN,
            (_State.BETWEEN, _CALL): _State.HEAD,
            (_State.HEAD, _SEP): _State.BODY,
            (_State.TAIL, _END_CALL): _State.BETWEEN,
            (_State.BETWEEN, _END_CALLS): _State.CONTENT,
        }.get((self._state, marker))
        if following is None:
            self._give_back()
            if marker == _CALLS:
                self._on_marker(marker)
            else:
                self._sink.content(marker)
            return
        is_over = following is _State.CONTENT or self._state is _State.TAIL
        if is_over:
            self._sink.end_content()
            self._raw.take()
        else:
            self._raw.add(marker)
        self._state = following
        if following is _State.HEAD:
            self._head = self._body = ""

    def _ended(self) -> None:
        self._state = _State.TAIL

    def _reset(self) -> None:
        self._state = _State.CONTENT
