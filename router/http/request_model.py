"""The base of all parts of a body."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

_MOST_FIELDS = 64
"""Fields of one object, known and unknown, above which none of them is looked at; no model has more."""


class RequestModel(BaseModel):
    """Base of all parts of a body: types are not converted, unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MOST_FIELDS:
            found = {"number": len(value), "most": _MOST_FIELDS}
            raise PydanticCustomError("too_many", "has {number} fields, at most {most} are allowed", found)
        return value
