"""Formats of a model's messages: parsers by its chat template, markers by its vocabulary."""

from collections.abc import Mapping, Sequence
from typing import Any

from router.config import RouterSection
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer
from router.tools.families import has_channels, reasoning_markers, tool_parser
from router.tools.message import MessageFormat, markers_of
from router.tools.parser import ToolParser

_TAIL = 16
"""Tokens at the end of a prompt in which an open block of reasoning is looked for."""


class MessageFormats:
    """Formats of the messages of one model.

    Attributes:
        parser: Parser of its tool calls; None if calls are left in the text.
        is_off: True if calls are left in the text because the configuration says so.
        takes_tools: True if the chat template can render tools.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, config: RouterSection) -> None:
        source = template.tool_source
        self.parser: type[ToolParser] | None = tool_parser(config.tool_parser, source)
        self.is_off = config.tool_parser == "none"
        self.takes_tools = template.takes_tools
        self._reasoning = reasoning_markers(config.reasoning_parser, source)
        self._has_channels = self._reasoning is None and has_channels(config.reasoning_parser, source)
        self._calls_have_channels = self.parser is not None and self.parser.has_channels
        self._tokenizer = tokenizer
        has_any = self._has_channels or self._calls_have_channels
        known = MessageFormat(self.parser, reasoning=self._reasoning, has_channels=has_any)
        self._markers = {marker: tokenizer.token_of(marker) for marker in markers_of(known)}

    def format(
        self,
        prompt: Sequence[int],
        tools: Mapping[str, Any],
        parallel: bool,
        keeps_reasoning: bool,
        tracks_tokens: bool = False,
    ) -> MessageFormat | None:
        """Return the format of the answer to a prompt; None if all its text is content.

        Args:
            prompt: Token ids of the prompt.
            tools: Schema of the arguments of each tool that may be called, by its name; none leaves calls in
                the text.
            parallel: True if the message may have several calls.
            keeps_reasoning: False drops the reasoning.
            tracks_tokens: True if the parts of the answer show which tokens are content.
        """
        parser = self.parser if tools else None
        if parser is None and self._reasoning is None and not (self._has_channels or tracks_tokens):
            return None
        return MessageFormat(
            parser,
            tools,
            reasoning=self._reasoning,
            is_thinking=self._ends_in_reasoning(prompt),
            parallel=parallel,
            keeps_reasoning=keeps_reasoning,
            markers=self._markers,
            tracks_tokens=tracks_tokens,
            has_channels=self._has_channels or (bool(tools) and self._calls_have_channels),
        )

    def _ends_in_reasoning(self, prompt: Sequence[int]) -> bool:
        """Return True if a prompt opens a block of reasoning, as some chat templates do."""
        if self._reasoning is None:
            return False
        tail, opening = prompt[-_TAIL:], self._reasoning[0]
        is_text = self._markers[opening] is None
        text = self._tokenizer.decode(tail, skip_special_tokens=False)
        return text.rstrip().endswith(opening) and (is_text or self._markers[opening] in tail)
