"""Calls as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from collections.abc import Mapping
from typing import ClassVar

from flyserve.core.markers import HERMES_CALL
from router.text.growing_text import GrowingText
from router.tools.json_call import CallReader, Reader
from router.tools.lark import Write, json_object
from router.tools.parser import ToolParser
from router.tools.parts import Sink

_OPEN, _CLOSE = HERMES_CALL


class Hermes(ToolParser):
    """Parser of Hermes' format."""

    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE)

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._awaits_close = False

    @classmethod
    def opening(cls) -> str:
        return _OPEN

    @classmethod
    def calls_rule(cls, tools: Mapping[str, str], write: Write, parallel: bool) -> str:
        repeat = r' ("\n" item)*' if parallel else ""
        calls = "\n  | ".join(json_object(name, rule, "arguments") for name, rule in tools.items())
        item = rf'item: {write(_OPEN)} "\n" call "\n" {write(_CLOSE)}'
        return f"calls: item{repeat}\n{item}\ncall: {calls}\n"

    def _outside(self, text: str) -> str:
        if text.strip():
            self._awaits_close = False
        self._sink.content(text)
        return ""

    def _on_marker(self, marker: str) -> None:
        if marker == _OPEN:
            self._reader, self._raw = self._new_reader(), GrowingText(marker)
        elif self._awaits_close:
            self._sink.end_content()
        else:
            self._sink.content(marker)
        self._awaits_close = False

    def _new_reader(self) -> Reader:
        return CallReader(self._sink)

    def _ended(self) -> None:
        self._awaits_close = True

    def _reset(self) -> None:
        self._awaits_close = False
