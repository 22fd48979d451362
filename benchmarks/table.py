"""The comparison as a table for people: one column per setting, so that it fits 80 characters."""

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.table import Table

from benchmarks.summary import Summary

_ALWAYS: Mapping[str, Callable[[Summary], str]] = {
    "tokens/s": lambda s: f"{s.tokens_per_s:.0f}",
    "median tokens/s": lambda s: f"{s.median_tokens_per_s:.0f}",
    "accuracy": lambda s: f"{s.accuracy:.1%}",
}
_OF_DRAFTS: Mapping[str, Callable[[Summary], str]] = {
    "speed-up": lambda s: f"{s.speed_up.value:.2f}x",
    "95% interval": lambda s: f"{s.speed_up.low:.2f}-{s.speed_up.high:.2f}",
    "tau": lambda s: f"{s.tau:.2f}",
    "rescued tokens": lambda s: f"{s.rescued_share:.1%}",
    "drafts by sub-drafter": lambda s: f"{s.supplied_share:.1%}",
    "drafter forwards/token": lambda s: f"{s.forwards_per_token:.2f}",
    "problems lost / gained": lambda s: f"{s.lost} / {s.gained}",
}
_ROWS = (
    "tokens/s",
    "median tokens/s",
    "speed-up",
    "95% interval",
    "tau",
    "rescued tokens",
    "drafts by sub-drafter",
    "drafter forwards/token",
    "accuracy",
    "problems lost / gained",
)


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """One column per setting; the baseline comes first and has no figures of drafts."""
    title = f"{summaries[0].problems} held-out problems, one request at a time"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("")
    for summary in summaries:
        table.add_column(summary.setting, justify="right", no_wrap=True)
    for row in _ROWS:
        table.add_row(row, *(_cell(row, summary) for summary in summaries))
    return table


def _cell(row: str, summary: Summary) -> str:
    if row in _ALWAYS:
        return _ALWAYS[row](summary)
    return _OF_DRAFTS[row](summary) if summary.tau else "-"
