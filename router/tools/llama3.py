"""Calls as Llama 3.x writes them: `{"name": ..., "parameters": {...}}` in place of an answer."""

from collections.abc import Mapping

from flyserve.core.markers import LLAMA3_CALL
from router.text.growing_text import GrowingText
from router.tools.json_call import CallReader
from router.tools.lark import Write, json_object
from router.tools.parser import ToolParser
from router.tools.parts import Sink

_TAG, _ = LLAMA3_CALL


class Llama3(ToolParser):
    """Parser of Llama's JSON format; calls come at the start or after the tag, perhaps with `;` between them.

    A grammar allows one call, and further ones are dropped: Meta's templates refuse a message with several.
    """

    markers = (_TAG,)
    separators = ";"
    has_one_call = True

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._may_begin = True
        self._is_after_call = False

    @classmethod
    def opening(cls) -> str:
        return ""

    @classmethod
    def calls_rule(cls, tools: Mapping[str, str], write: Write, parallel: bool) -> str:
        calls = "\n  | ".join(json_object(name, rule, "parameters") for name, rule in tools.items())
        return f"calls: {calls}\n"

    def _outside(self, text: str) -> str:
        rest = text.lstrip()
        white = text[: len(text) - len(rest)]
        if self._may_begin:
            self._raw.add(white)
            if rest.startswith("{"):
                self._may_begin, self._reader = False, CallReader(self._sink)
                return rest
            if rest:
                self._give_back()
            return rest
        if self._is_after_call and rest.startswith((";", "{")):
            rest = rest.removeprefix(";")
            self._may_begin, self._is_after_call = True, False
            self._raw = GrowingText(text[: len(text) - len(rest)])
            return rest
        self._is_after_call = self._is_after_call and not rest
        self._sink.content(text)
        return ""

    def _on_marker(self, marker: str) -> None:
        self._give_back()
        self._may_begin, self._raw = True, GrowingText(marker)

    def _ended(self) -> None:
        self._is_after_call = True

    def _reset(self) -> None:
        self._may_begin = self._is_after_call = False
