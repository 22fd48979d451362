"""Parts of a response that are decoded exactly, while the rest is decoded loosely. All functions are pure."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from flyserve.core.markers import REASONING, TOOL_CALLS, Markers


class Span(StrEnum):
    """Kind of text that mode `fly` can decode exactly."""

    DIGITS = "digits"
    """Tokens with a digit, and positions where the target would write one."""
    CODE = "code"
    """Fenced code blocks: between lines of three backticks."""
    REASONING = "reasoning"
    """Reasoning of a model before its answer: such as between `<think>` and `</think>`."""
    STRUCTURED = "structured"
    """The whole response to a request with a grammar, such as a JSON Schema."""
    TOOLS = "tools"
    """Tool calls, from the first marker of the model's family to its last."""


MARKERS: Mapping[Span, tuple[Markers, ...]] = {
    Span.CODE: (("```", "```"),),
    Span.REASONING: REASONING,
    Span.TOOLS: TOOL_CALLS,
}


@dataclass(frozen=True, slots=True)
class SpanState:
    """Place in a text.

    Attributes:
        closing: Text that closes the part in which the place is; "" if nothing closes it, None outside.
        tail: End of the text that may be the beginning of a marker.
    """

    closing: str | None = None
    tail: str = ""


def advance(state: SpanState, text: str, markers: Collection[Markers]) -> SpanState:
    """Return the place after some more text."""
    closing, rest = state.closing, state.tail + text
    while True:
        sought = [(opening, end) for opening, end in markers] if closing is None else [(closing, None)]
        found = [(at, mark, end) for mark, end in sought if mark and (at := rest.find(mark)) >= 0]
        if not found:
            break
        at, mark, closing = min(found, key=lambda each: each[0])
        rest = rest[at + len(mark) :]
    longest = max((len(mark) for pair in markers for mark in pair), default=0)
    return SpanState(closing, rest[max(0, len(rest) - longest + 1) :])


@dataclass(slots=True)
class StrictSpans:
    """Positions of one response that are decoded exactly.

    Attributes:
        spans: Kinds of text that are decoded exactly; none makes no position strict.
        pieces: Function from token ids to the text of each by itself, special tokens included.
        length: Tokens of the sequence that have been read: at first the prompt, whose end may open a part.
        state: Place after these tokens.
    """

    spans: Collection[Span]
    pieces: Callable[[Sequence[int]], Sequence[str]]
    length: int
    state: SpanState = field(default_factory=SpanState)

    def read(self, ids: Sequence[int]) -> None:
        """Read the end of the prompt: a template may open a part there."""
        self.state = self._after(self.state, ids)

    def resume(self, ids: Sequence[int]) -> None:
        """Read the beginning of a response that continues after it."""
        self.read(ids)
        self.length += len(ids)

    def strict(
        self, ids: Sequence[int], decided_length: int, drafts: Sequence[int], choices: Sequence[int]
    ) -> tuple[bool, ...]:
        """Return for each draft token whether its position is decoded exactly.

        Args:
            ids: The sequence: prompt, decided and provisional tokens.
            decided_length: Tokens of it that will never be rolled back; at least those of earlier calls.
            drafts: Draft tokens after the sequence.
            choices: The target's choice at the position of each.
        """
        if not self.spans:
            return (False,) * len(drafts)
        self.state = self._after(self.state, ids[self.length : decided_length])
        self.length = decided_length
        return tuple(self._strict(self._after(self.state, ids[decided_length:]), drafts, choices))

    def _strict(self, state: SpanState, drafts: Sequence[int], choices: Sequence[int]) -> Iterator[bool]:
        for draft, choice in zip(self.pieces(drafts), self.pieces(choices[: len(drafts)]), strict=True):
            has_digit = Span.DIGITS in self.spans and any(map(str.isdigit, draft + choice))
            yield has_digit or state.closing is not None
            state = advance(state, draft, self._markers)

    def _after(self, state: SpanState, ids: Sequence[int]) -> SpanState:
        return advance(state, "".join(self.pieces(ids)), self._markers) if self._markers else state

    @property
    def _markers(self) -> list[Markers]:
        return [pair for span in self.spans for pair in MARKERS.get(span, ())]
