"""The base of all parts of a body; the limits of its lists and maps, checked before any item is looked at."""

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from router.config import LimitsConfig

_MOST_FIELDS = 64
"""Fields of one object, known and unknown, above which none of them is looked at; no model has more."""


def _too_many(number: int, noun: str, most: int, key: str = "") -> PydanticCustomError:
    found = {"number": number, "noun": noun, "most": most, "key": key}
    return PydanticCustomError("too_many", "has {number} {noun}, at most {most} are allowed{key}", found)


class RequestModel(BaseModel):
    """Base of all parts of a body: types are not converted, null is absent, unknown names are errors.

    So a misspelled field never changes a request in silence. Null requests nothing, whatever its name is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if len(value) > _MOST_FIELDS:
            raise _too_many(len(value), "fields", _MOST_FIELDS)
        if None in value.values():
            return {name: item for name, item in value.items() if item is not None}
        return value


class SentBack(RequestModel):
    """Base of what a client has received before and hands back: messages, items, calls, and parts of them.

    Servers, client libraries and frameworks add fields to them, and each version others. Those that the
    prompt is made of are known; the rest is dropped, whatever its name is.
    """

    model_config = ConfigDict(extra="ignore")


class Described(RequestModel):
    """Base of what a client describes, such as a tool: a field that is unknown gets a warning."""

    model_config = ConfigDict(extra="allow")


class AtMost:
    """Annotation that limits the items of a list or map; other values pass.

    Every list and map of a body has one. The validation's context is the router's limits.
    """

    def __init__(self, limit: str | int, noun: str = "items") -> None:
        """Allow as many items as a key of `router.limits` says, or a fixed number, for all deployments."""
        self._limit = limit
        self._noun = noun

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self.check, handler(source))

    def check(self, value: Any, info: ValidationInfo) -> Any:
        """Return the value; raise PydanticCustomError if it has too many items."""
        if isinstance(value, list | dict) and len(value) > (most := self._most(info.context)):
            key = "" if isinstance(self._limit, int) else f" (router.limits.{self._limit})"
            raise _too_many(len(value), self._noun, most, key)
        return value

    def _most(self, limits: LimitsConfig | None) -> int:
        return self._limit if isinstance(self._limit, int) else int(getattr(limits, self._limit))
