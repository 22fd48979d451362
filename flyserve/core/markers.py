"""Texts that open and close the parts of a message, by family of models. Pure."""

Markers = tuple[str, str]
"""Text that opens a part, and text that closes it; "" if only the end of the response does."""

THINK: Markers = ("<think>", "</think>")
MISTRAL_THINK: Markers = ("[THINK]", "[/THINK]")
REASONING = (THINK, MISTRAL_THINK)
"""Reasoning before an answer."""

HERMES_CALL: Markers = ("<tool_call>", "</tool_call>")
DEEPSEEK_CALLS: Markers = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001
LLAMA3_CALL: Markers = ("<|python_tag|>", "")
MISTRAL_CALLS: Markers = ("[TOOL_CALLS]", "")
TOOL_CALLS = (HERMES_CALL, DEEPSEEK_CALLS, LLAMA3_CALL, MISTRAL_CALLS)
"""Tool calls."""
