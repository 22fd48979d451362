"""Verdicts as colours: the text of a response, the legend, the line of statistics."""

from collections.abc import Callable, Sequence

from rich.text import Text

from fly.types import Verdict
from flyserve.types import Chunk, Piece, Statistics

STYLES = {
    Verdict.EXACT: "green",
    Verdict.RESCUED: "bold yellow",
    Verdict.CORRECTED: "red",
    Verdict.BONUS: "cyan",
    Verdict.PLAIN: "default",
}
_MEANINGS = {
    Verdict.EXACT: "the target's choice, drafted",
    Verdict.RESCUED: "kept by FLy",
    Verdict.CORRECTED: "by the target",
    Verdict.BONUS: "after a whole draft",
    Verdict.PLAIN: "no draft",
}


def coloured(chunk: Chunk, tokenize: Callable[[str], Sequence[Piece]]) -> Text:
    """A chunk's text, each token in its verdict's colour.

    The wire tells verdicts by token and text by chunk, so the text is tokenized again; where that gives
    other tokens (text withheld or joined to the chunk before), it stays uncoloured.
    """
    if not chunk.text:
        return Text()
    pieces = tokenize(chunk.text)
    same = [piece.id for piece in pieces] == [token.id for token in chunk.tokens]
    if not same or "".join(piece.text for piece in pieces) != chunk.text:
        return Text(chunk.text)
    return Text.assemble(
        *((piece.text, STYLES[token.verdict]) for piece, token in zip(pieces, chunk.tokens, strict=True))
    )


def legend() -> Text:
    """One line that explains the colours."""
    entries = (
        Text.assemble((verdict.value, style), f" {_MEANINGS[verdict]}") for verdict, style in STYLES.items()
    )
    return Text(" | ").join(entries)


def statistics_line(statistics: Statistics) -> str:
    """One line: how many tokens, how fast, and what speculation did for it."""
    speed = statistics.emitted / statistics.total_s if statistics.total_s else 0.0
    parts = [
        f"{statistics.emitted} tokens",
        f"{speed:.1f} tokens/s",
        f"tau {statistics.tau:.2f}",
        f"{statistics.rescued} rescued",
        f"first token after {statistics.time_to_first_token_s * 1000:.0f} ms",
    ]
    return " | ".join(parts)
