"""Faults of a configuration, each in one line: the key, the value found, and the limit or the remedy."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from flyserve.core.wording import requirement
from services.common.sections import ENGINE, advice_on, engine_of, named_sections, sections_of

_OF_NAME = "[key]"
"""Part of a location, after a name in a mapping, if the name itself is the fault."""
_LONGEST_NAME = 64
"""Characters of a name above which nothing similar is looked for: that takes the square of them."""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that begins with the name or is most similar to it; a long name has none."""
    if len(name) > _LONGEST_NAME:
        return None
    known = list(candidates)
    begun = [candidate for candidate in known if len(name) > 1 and candidate.startswith(name)]
    near = begun or difflib.get_close_matches(name, known, n=1)
    return near[0] if near else None


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a fault.

    Attributes:
        key: Dotted name of the key.
        name: Its last part.
        section: Section that has the key or should have it; None if it is unknown.
        union: That section and the others of its union.
        is_section: The key is a section itself.
    """

    key: str
    name: str
    section: type[BaseModel] | None
    union: Sequence[type[BaseModel]]
    is_section: bool

    @property
    def engine(self) -> str:
        """Engine that the data chose from a union; empty outside of unions."""
        return engine_of(self.section) if self.section is not None and len(self.union) > 1 else ""


def _place(union: Sequence[type[BaseModel]], location: Sequence[int | str]) -> _Place:
    """Return the place of a fault; in a location of pydantic, the engine follows the name of a union."""
    names: list[str] = []
    owner, owners = None, union
    named: Sequence[type[BaseModel]] = ()
    section = union[0] if len(union) == 1 else None
    for part in location:
        if section is None and len(union) > 1:
            section = next(each for each in union if engine_of(each) == part)
            continue
        if part == _OF_NAME:
            union = ()
            continue
        names.append(str(part))
        if isinstance(part, int):
            continue
        owner, owners = section, union
        if named:
            union, named = named, ()
            section = union[0] if len(union) == 1 else None
            continue
        field = None if section is None else section.model_fields.get(part)
        union = () if field is None else sections_of(field.annotation)
        named = () if field is None else named_sections(field.annotation)
        section = union[0] if len(union) == 1 else None
    return _Place(".".join(names), names[-1] if names else "", owner, owners, bool(union))


def describe_fault(roots: Sequence[type[BaseModel]], fault: Any, keeps_secrets: bool) -> str:
    """Return one fault of pydantic in one line; `roots` are the possible sections of the whole data."""
    place = _place(roots, fault["loc"])
    message = requirement(fault)
    prefix = f"{place.key}." if place.key else ""
    if fault["type"] == "union_tag_invalid":
        tag, known = fault["ctx"]["tag"], fault["ctx"]["expected_tags"]
        return f"{prefix}{ENGINE}: is {tag!r}: must be one of {known}{advice_on(tag)}"
    if fault["type"] == "union_tag_not_found":
        return f"{place.key}: is {fault['input']!r}: must be a mapping of keys"
    if not place.key:
        return message
    if fault["type"] == "extra_forbidden":
        return f"{place.key}: {_explain_unknown(place)}"
    if fault["type"] == "missing":
        return f"{place.key}: is required{_engines_without(place)}"
    if fault["type"] == "value_error" and place.is_section:
        # NOTE: of the section as a whole; its message begins with the key.
        return f"{prefix}{message}"
    if keeps_secrets:
        return f"{place.key}: {message}"
    return f"{place.key}: is {fault['input']!r}: {message}"


def _explain_unknown(place: _Place) -> str:
    """Explain why a key is not accepted: it is reserved, another engine's, or unknown."""
    if place.name in (reserved := getattr(place.section, "reserved", {})):
        return f"cannot be set here: {reserved[place.name]}"
    if others := [engine_of(each) for each in place.union if place.name in each.model_fields]:
        return f"engine {place.engine} has no such key, only {', '.join(others)}: leave it out"
    keys = [] if place.section is None else list(place.section.model_fields)
    near = nearest(place.name, keys)
    return "unknown key" + (f", did you mean {near!r}?" if near else f", one of {', '.join(sorted(keys))}")


def _engines_without(place: _Place) -> str:
    """Return the engine that requires a key, and those that have none; empty outside of unions."""
    without = [engine_of(each) for each in place.union if place.name not in each.model_fields]
    rest = f"; engines without it: {', '.join(without)}" if without else ""
    return f" with engine {place.engine}{rest}" if place.engine else ""
