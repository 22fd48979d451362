"""The base of all parts of a body."""

from pydantic import BaseModel, ConfigDict


class RequestModel(BaseModel):
    """Base of all parts of a body: types are not converted, unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
