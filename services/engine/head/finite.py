"""Faults: rows from which no token can be chosen."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

from services.engine.base import Scores
from services.engine.head.chunks import Part

_NOT_FINITE = "the model's logits are NaN, infinite, or all -inf"


class Fault(NamedTuple):
    """The first row of a part from which no token can be chosen.

    Attributes:
        row: Its index among the rows of the part.
        reason: Description of the fault.
        field: Field of the sequence's `Open` that causes it; "" if the model does.
        late: Work that the row waits for, if there is no other fault.
        is_lost: True if the row needs a process that has ended.
    """

    row: int
    reason: str
    field: str = ""
    late: Future[Any] | None = None
    is_lost: bool = False


def raw_fault(part: Part, row: int) -> Fault:
    """Return the fault of a row whose logits, as the model computed them, are not finite."""
    return Fault(row, f"no token can be chosen at position {position(part, row)}: {_NOT_FINITE}")


def position(part: Part, row: int) -> int:
    """Return the position of the token that a row of a part chooses."""
    return part.item.first_position + part.first + row


def within(part: Part, fault: Fault | None) -> Fault | None:
    """Return the fault of a part of an input's rows that a fault of the input is; None if it comes later."""
    if fault is None or fault.row >= part.end:
        return None
    return fault._replace(row=max(0, fault.row - part.first))


def bad_rows(is_finite: Sequence[bool], spans: Sequence[slice]) -> list[int | None]:
    """Return for each part its first row whose largest logit is not finite; None if there is none."""
    if all(is_finite):
        return [None] * len(spans)
    rows = [list(is_finite[span]) for span in spans]
    return [each.index(False) if False in each else None for each in rows]


def cut(scores: Scores, fault: Fault | None) -> Scores:
    """Return the scores of the rows before a fault, with its error."""
    if fault is None:
        return scores
    end = fault.row
    return replace(
        scores,
        choices=scores.choices[:end],
        entropies=scores.entropies[:end],
        # The draft after the last row that is left has not been scored.
        excluded=(*scores.excluded[: end - 1], False) if end else (),
        logprobs=scores.logprobs[:end],
        gaps=scores.gaps[:end],
        distributions=scores.distributions[:end],
        error=fault.reason,
        field=fault.field,
        late=fault.late,
        is_lost=fault.is_lost,
    )


def joined(parts: Sequence[Scores]) -> Scores:
    """Return the scores of an input from those of its parts, in order.

    A fault of the first row is an error. A later row follows drafts that the model may never choose, so its
    fault only ends the scores there: the caller goes on without these drafts.
    """
    end = next((index + 1 for index, part in enumerate(parts) if part.error), len(parts))
    kept = parts[:end]
    if not kept:
        return Scores((), (), ())
    if kept[-1].error and not (len(kept) > 1 or kept[-1].choices):
        return kept[-1]
    return kept[0] if len(kept) == 1 and not kept[0].error else Scores.joined(kept)
