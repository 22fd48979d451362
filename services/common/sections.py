"""Sections of a configuration: one in a key, or several of which the key `engine` chooses one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

S = TypeVar("S", bound=BaseModel, covariant=True)

ENGINE = "engine"
"""Key that decides which section of a union describes a tier."""

_REMOVED = {"ngram": "use suffix, which looks tokens up in the sequence, too"}
"""Engines that an earlier version had, each with the remedy."""


class Engines(Generic[S]):
    """Sections that the key `engine` chooses from; without it, it is the first one.

    In `Annotated[A | B, Engines(A, B)]` it makes a key of that type a tagged union.
    """

    def __init__(self, *sections: type[S]) -> None:
        self.sections = sections
        self._adapter: TypeAdapter[S] = TypeAdapter(Annotated[Any, self])

    @property
    def names(self) -> tuple[str, ...]:
        """Values of the key `engine`; the first one is its default."""
        return tuple(map(engine_of, self.sections))

    def named(self, engine: str) -> type[S]:
        """Return the section of an engine."""
        return next(section for section in self.sections if engine_of(section) == engine)

    def validate(self, data: Mapping[str, Any]) -> S:
        """Return the section that the data describes; raises pydantic's ValidationError."""
        return self._adapter.validate_python(data)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {engine_of(section): handler.generate_schema(section) for section in self.sections}
        return core_schema.tagged_union_schema(choices, self._choose)

    def _choose(self, data: Any) -> str | None:
        if isinstance(data, BaseModel):
            return str(getattr(data, ENGINE))
        return str(data.get(ENGINE, engine_of(self.sections[0]))) if isinstance(data, dict) else None


def advice_on(engine: str) -> str:
    """Return the end of an error that rejects an engine: the remedy if it is removed, else nothing."""
    remedy = _REMOVED.get(engine)
    return f"; {engine} is removed: {remedy}" if remedy else ""


def engine_of(section: type[BaseModel]) -> str:
    """Return the engine whose keys a section of a union has."""
    return str(section.model_fields[ENGINE].default)


def sections_of(annotation: Any) -> tuple[type[BaseModel], ...]:
    """Return the models in the type of a field: one of a section, one for each engine of a tier."""
    if isinstance(annotation, Engines):
        return annotation.sections
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    if get_origin(annotation) is dict:
        return ()  # its keys are names that users give: see `named_sections`
    inner = getattr(annotation, "__args__", ())
    return tuple(section for part in inner for section in sections_of(part))


def named_sections(annotation: Any) -> tuple[type[BaseModel], ...]:
    """Return the models of the values of a mapping by names; none for any other type."""
    return sections_of(get_args(annotation)[1]) if get_origin(annotation) is dict else ()


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the first model in the type of a field, such as an optional section or a list of sections."""
    return next(iter(sections_of(annotation)), None)


def section_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the section of a fault, such as that of `limits` for `limits.choces`; None if there is none."""
    section: type[BaseModel] | None = model
    for part in location[:-1]:
        if section is not None and not isinstance(part, int):
            field = section.model_fields.get(part)
            section = None if field is None else section_of(field.annotation)
    return section


def keys_of(sections: Sequence[type[BaseModel]]) -> dict[str, FieldInfo]:
    """Return the keys of all sections of a union; the first section that has a key declares it."""
    keys: dict[str, FieldInfo] = {}
    for section in sections:
        for name, field in section.model_fields.items():
            keys.setdefault(name, field)
    return keys


def leaves(sections: Sequence[type[BaseModel]], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted name and the declaration of every key, those of nested sections included."""
    for name, field in keys_of(sections).items():
        if inner := sections_of(field.annotation):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field
