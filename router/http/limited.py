"""Limits of lists and maps in bodies: checked before any item is looked at."""

from typing import Any

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from router.config import LimitsConfig

_SIZED = (list, dict)


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
        if isinstance(value, _SIZED) and len(value) > (most := self._most(info.context)):
            found = {"number": len(value), "noun": self._noun, "most": most, "key": self._key}
            raise PydanticCustomError(
                "too_many", "has {number} {noun}, at most {most} are allowed{key}", found
            )
        return value

    def _most(self, limits: LimitsConfig | None) -> int:
        return self._limit if isinstance(self._limit, int) else int(getattr(limits, self._limit))

    @property
    def _key(self) -> str:
        return "" if isinstance(self._limit, int) else f" (router.limits.{self._limit})"
