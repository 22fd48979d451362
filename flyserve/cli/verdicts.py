"""Verdicts as colours: the text of a response, the legend, the line of statistics."""

from collections import deque

from rich.text import Text

from fly.types import Verdict
from flyserve.types import Chunk, Statistics

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


class Colouring:
    """The text of one choice as it comes, each token's part in its verdict's colour."""

    def __init__(self) -> None:
        self._untold: deque[tuple[str, Verdict]] = deque()

    def colour(self, chunk: Chunk) -> Text:
        """A chunk's text.

        Tokens come before their text does where it may begin a stop string, hence the queue. Text that
        belongs to no token, an incomplete character at the end, stays uncoloured.
        """
        self._untold.extend((token.text, token.verdict) for token in chunk.tokens)
        text, at = Text(), 0
        while at < len(chunk.text) and self._untold:
            part, verdict = self._untold.popleft()
            shown = part[: len(chunk.text) - at]
            text.append(chunk.text[at : at + len(shown)], STYLES[verdict])
            at += len(shown)
            if len(shown) < len(part):
                self._untold.appendleft((part[len(shown) :], verdict))
        return text.append(chunk.text[at:])


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
