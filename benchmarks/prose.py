"""Paragraphs that a report fills with figures. Pure."""

import textwrap

_WIDTH = 110


def wrapped(text: str) -> str:
    """The same paragraphs and headings in full lines, with an empty line before and after."""
    parts = text.strip("\n").split("\n\n")
    return "\n".join(f"\n{textwrap.fill(part, _WIDTH)}" for part in parts) + "\n"
