"""JSON of chunks that differ in nothing but their text: everything around it is made once for each choice."""

import uuid
from collections.abc import Callable

from pydantic_core import to_json

from flyserve.core.response import Chunk
from router.generation.response import MessageChunk
from router.tools.parts import Parts

_MARK = uuid.uuid4().hex
"""Text that no client can guess, so that no other field has it."""


class TextFrames:
    """The JSON around the text of each choice's chunks; one frame for its content, one for its reasoning.

    Later chunks of a choice that have nothing but text, and no figures of their tokens, are equal but for it.
    """

    def __init__(self, make: Callable[[Chunk], bytes]) -> None:
        """Use `make`, which returns the JSON of any chunk that is not the first one of its choice."""
        self._make = make
        self._frames: dict[tuple[int, bool], list[bytes]] = {}

    def json(self, chunk: Chunk) -> bytes:
        """Return the JSON of a chunk that is not the first one of its choice, as `make` does."""
        parts = chunk.parts if isinstance(chunk, MessageChunk) else None
        is_reasoning = parts is not None and bool(parts.reasoning)
        if chunk.finish_reason is not None or (parts and (parts.calls or (is_reasoning and parts.content))):
            return self._make(chunk)
        key = chunk.choice_index, is_reasoning
        if (frame := self._frames.get(key)) is None:
            frame = self._frames[key] = self._make(_marked(*key)).split(_MARK.encode())
        text = parts.reasoning if parts and is_reasoning else chunk.text
        return to_json(text)[1:-1].join(frame)


def _marked(index: int, is_reasoning: bool) -> Chunk:
    if is_reasoning:
        return MessageChunk(text="", choice_index=index, parts=Parts(reasoning=_MARK))
    return Chunk(text=_MARK, choice_index=index)
