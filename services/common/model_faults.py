"""Faults that pydantic finds in input: the known name nearest to an unknown one."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

MESSAGE_PREFIX = "Value error, "
"""Prefix that pydantic adds to the messages of a model's own validators."""


def field_names(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """Return the names that the section of a fault has, such as those of `limits` for `limits.choces`."""
    section: Any = model
    for part in location[:-1]:
        section = section if isinstance(part, int) else _section(section, part)
    return list(getattr(section, "model_fields", {}))


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that begins with the name or is most similar to it."""
    known = list(candidates)
    begun = [candidate for candidate in known if len(name) > 1 and candidate.startswith(name)]
    near = begun or difflib.get_close_matches(name, known, n=1)
    return near[0] if near else None


def _section(model: Any, name: str) -> Any:
    """Return the model of a field; for an optional one or a list of models, that model."""
    field = getattr(model, "model_fields", {}).get(name)
    candidates = [field.annotation] if field is not None else []
    while candidates:
        candidate = candidates.pop()
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
        candidates += getattr(candidate, "__args__", ())
    return None
