"""Calls as GPT-OSS writes them: the header of a channel names the tool, its text is the arguments."""

from collections.abc import Mapping

from router.text.growing_text import GrowingText
from router.tools.channels import CALL, CHANNELS, CONSTRAIN, tool_of
from router.tools.json_call import ArgumentsReader
from router.tools.lark import Write, literal
from router.tools.parser import ToolParser


class GptOss(ToolParser):
    """Parser of GPT-OSS's format, of one call: its end is a token that ends the response."""

    markers = (CONSTRAIN, CALL)
    has_one_call = True
    has_channels = True

    @classmethod
    def opening(cls) -> str:
        return "to=functions."

    @classmethod
    def calls_rule(cls, tools: Mapping[str, str], write: Write, parallel: bool) -> str:
        _, channel, message, _ = map(write, CHANNELS)
        head = f'{write(CONSTRAIN)} "json" {message}'
        named = (
            f"{literal(f'commentary to=functions.{name} ')} {head} {arguments}"
            for name, arguments in tools.items()
        )
        calls = "\n  | ".join(named)
        return f"calls: {channel} call\ncall: {calls}\n"

    def take_header(self, header: str) -> bool:
        name = tool_of(header)
        if name not in self._sink.tools:
            return False
        self._reader, self._raw = ArgumentsReader(self._sink, name), GrowingText(header)
        return True

    def _outside(self, text: str) -> str:
        self._sink.content(text)
        return ""

    def _on_marker(self, marker: str) -> None:
        self._sink.end_content()

    def _ended(self) -> None:
        pass

    def _reset(self) -> None:
        pass
