"""Pydantic models derived from dataclasses, so that a field is declared once."""

import inspect
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, Field, create_model

M = TypeVar("M", bound=BaseModel)

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def with_fields_of(
    source: type,
    convert: Callable[[Any], Any] = lambda kind: kind,
    defaults: Mapping[str, Any] | None = None,
    only: Container[str] | None = None,
) -> Callable[[type[M]], type[M]]:
    """Return a class decorator that adds the fields of the dataclass `source` to a model, or `only` some.

    Fields that the model has already are left as they are. `convert` returns the model's type for a type
    of the dataclass; a field without a default in `defaults` is optional and None.
    """

    def extend(model: type[M]) -> type[M]:
        hints, own, given = get_type_hints(source), model.model_fields, defaults or {}
        texts = _descriptions(source)
        added: dict[str, Any] = {}
        for name in (each.name for each in fields(source) if each.name not in own):
            if only is not None and name not in only:
                continue
            kind = convert(_without_none(hints[name]))
            kind, default = (kind, given[name]) if name in given else (kind | None, None)
            added[name] = (kind, Field(default, description=texts.get(name)))
        module, doc = model.__module__, model.__doc__
        return create_model(model.__name__, __base__=model, __module__=module, __doc__=doc, **added)

    return extend


def _without_none(hint: Any) -> Any:
    """Return X for `X | None`."""
    options = get_args(hint)
    return next(option for option in options if option is not NoneType) if NoneType in options else hint


def _descriptions(source: type) -> dict[str, str]:
    """Return the texts of the `Attributes:` sections of a dataclass and its bases, by field."""
    docs = (inspect.getdoc(base) or "" for base in reversed(source.__mro__) if "__doc__" in vars(base))
    return {name: " ".join(text.split()) for doc in docs for name, text in _ATTRIBUTE.findall(doc)}
