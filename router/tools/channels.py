"""Markers of the channels into which GPT-OSS and Gemma 4 write their reasoning. Pure."""

import re

from flyserve.core.markers import Markers

MESSAGE = "<|message|>"
CHANNELS = ("<|start|>", "<|channel|>", MESSAGE, "<|end|>")
"""Markers of GPT-OSS: each text comes after a header, such as `<|channel|>analysis<|message|>`."""
CONSTRAIN, CALL = "<|constrain|>", "<|call|>"
"""Markers of a call of GPT-OSS, before the type of its arguments and after them."""
LONGEST_HEADER = 256
"""Characters of a header above which it is text."""

GEMMA_THOUGHT: Markers = ("<|channel>", "<channel|>")
LABELS = {GEMMA_THOUGHT[0]: "thought\n"}
"""Text with which reasoning begins that is no part of it, by the marker before it."""
_TOOL = re.compile(r"to=functions\.([\w.-]+)")


def is_reasoning(header: str) -> bool:
    """Return True if the text after a header is reasoning, and not an answer or a call."""
    return "analysis" in header and not is_call(header)


def is_call(header: str) -> bool:
    """Return True if the text after a header is for a tool."""
    return "to=" in header


def tool_of(header: str) -> str:
    """Return the name of the tool that the text after a header is for; "" if there is none."""
    found = _TOOL.search(header)
    return found[1] if found else ""
