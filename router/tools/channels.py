"""Markers of the channels into which GPT-OSS and Gemma 4 write their reasoning. Pure."""

from flyserve.core.markers import Markers

MESSAGE = "<|message|>"
CHANNELS = ("<|start|>", "<|channel|>", MESSAGE, "<|end|>")
"""Markers of GPT-OSS: each text comes after a header, such as `<|channel|>analysis<|message|>`."""
LONGEST_HEADER = 256
"""Characters of a header above which it is text."""

GEMMA_THOUGHT: Markers = ("<|channel>", "<channel|>")
LABELS = {GEMMA_THOUGHT[0]: "thought\n"}
"""Text with which reasoning begins that is no part of it, by the marker before it."""


def is_reasoning(header: str) -> bool:
    """Return True if the text after a header is reasoning, and not an answer or a call."""
    return "analysis" in header and not is_call(header)


def is_call(header: str) -> bool:
    """Return True if the text after a header is for a tool."""
    return "to=" in header
