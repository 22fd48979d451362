"""Errors of rows from which no token can be chosen."""

from collections.abc import Sequence

from services.engine.head.chunks import Part

RAW = "the model's logits are NaN, infinite, or all -inf"
"""Reason of an error in the logits that the model computed."""


def non_finite(
    is_finite: Sequence[bool], chunk: Sequence[Part], spans: Sequence[slice], reason: str
) -> list[str]:
    """Return an error for each part with a row whose largest logit is not finite, "" for the others."""
    if all(is_finite):
        return [""] * len(chunk)
    errors = []
    for part, span in zip(chunk, spans, strict=True):
        rows = list(is_finite[span])
        bad = rows.index(False) if False in rows else None
        position = part.item.first_position + part.first + (bad or 0)
        errors.append("" if bad is None else f"no token can be chosen at position {position}: {reason}")
    return errors
