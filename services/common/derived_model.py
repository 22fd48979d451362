"""Pydantic models derived from dataclasses, so that a field is declared once."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, create_model

M = TypeVar("M", bound=BaseModel)


def with_fields_of(
    source: type, convert: Callable[[Any], Any] = lambda kind: kind, defaults: Mapping[str, Any] | None = None
) -> Callable[[type[M]], type[M]]:
    """Return a class decorator that adds the fields of a dataclass to a model.

    Args:
        source: Dataclass. Fields that the model declares itself are left as they are.
        convert: Returns the model's type for a type of the dataclass.
        defaults: Defaults by field; a field without one is optional and None.
    """

    def extend(model: type[M]) -> type[M]:
        hints, own, given = get_type_hints(source), model.model_fields, defaults or {}
        added: dict[str, Any] = {}
        for name in (each.name for each in fields(source) if each.name not in own):
            kind = convert(_without_none(hints[name]))
            added[name] = (kind, given[name]) if name in given else (kind | None, None)
        module, doc = model.__module__, model.__doc__
        return create_model(model.__name__, __base__=model, __module__=module, __doc__=doc, **added)

    return extend


def _without_none(hint: Any) -> Any:
    """Return X for `X | None`."""
    options = get_args(hint)
    return next(option for option in options if option is not NoneType) if NoneType in options else hint
