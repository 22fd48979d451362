"""Verdicts as colours: text of a response, legend, line of statistics."""

from collections import deque

from rich.text import Text

from fly.response import Chunk, Statistics
from fly.types import Verdict

STYLES = {
    Verdict.EXACT: "green",
    Verdict.RESCUED: "bold yellow",
    Verdict.CORRECTED: "red",
    Verdict.BONUS: "cyan",
    Verdict.PLAIN: "default",
}
_MEANINGS = {
    Verdict.EXACT: "the target's choice, drafted",
    Verdict.RESCUED: "accepted by FLy",
    Verdict.CORRECTED: "by the target",
    Verdict.BONUS: "after a whole draft",
    Verdict.PLAIN: "no draft",
}


class Colouring:
    """Text of one choice as it arrives, each token's part in the colour of its verdict."""

    def __init__(self) -> None:
        self._pending: deque[tuple[str, Verdict]] = deque()

    def colour(self, chunk: Chunk) -> Text:
        """Return a chunk's text.

        A token arrives before its text if the text may begin a stop string, hence the queue. Text without a
        token, an incomplete character at the end, stays uncoloured.
        """
        self._pending.extend((token.text, token.verdict) for token in chunk.tokens)
        text, at = Text(), 0
        while at < len(chunk.text) and self._pending:
            part, verdict = self._pending.popleft()
            shown = part[: len(chunk.text) - at]
            text.append(chunk.text[at : at + len(shown)], STYLES[verdict])
            at += len(shown)
            if len(shown) < len(part):
                self._pending.appendleft((part[len(shown) :], verdict))
        return text.append(chunk.text[at:])


def legend() -> Text:
    """Return one line that explains the colours."""
    entries = (
        Text.assemble((verdict.value, style), f" {_MEANINGS[verdict]}") for verdict, style in STYLES.items()
    )
    return Text(" | ").join(entries)


def statistics_line(statistics: Statistics) -> str:
    """Return one line: number of tokens, speed, and the effect of speculation."""
    speed = statistics.emitted / statistics.total_s if statistics.total_s else 0.0
    parts = [
        f"{statistics.emitted} tokens",
        f"{speed:.1f} tokens/s",
        f"tau {statistics.tau:.2f}",
        f"{statistics.rescued} rescued",
        f"first token after {statistics.time_to_first_token_s * 1000:.0f} ms",
    ]
    return " | ".join(parts)
