"""Faults that pydantic finds in input: the known name nearest to an unknown one."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

MESSAGE_PREFIX = "Value error, "
"""Prefix that pydantic adds to the messages of a model's own validators."""


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in the type of a field, such as an optional section or a list of sections."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = map(section_of, getattr(annotation, "__args__", ()))
    return next((section for section in inner if section is not None), None)


def section_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the section of a fault, such as that of `limits` for `limits.choces`; None if there is none."""
    section: type[BaseModel] | None = model
    for part in location[:-1]:
        if section is not None and not isinstance(part, int):
            field = section.model_fields.get(part)
            section = None if field is None else section_of(field.annotation)
    return section


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that begins with the name or is most similar to it."""
    known = list(candidates)
    begun = [candidate for candidate in known if len(name) > 1 and candidate.startswith(name)]
    near = begun or difflib.get_close_matches(name, known, n=1)
    return near[0] if near else None
