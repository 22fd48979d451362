"""The models that HTTP requests may name: NAME, and NAME-draft, which is the drafter's own model."""

import time
from dataclasses import replace
from typing import Any

from flyserve.core.errors import InvalidRequest, quoted
from flyserve.core.request import GenerateRequest
from flyserve.core.types import Mode
from router.config import RouterConfig
from router.http.api_format import HttpRequest
from router.http.errors import Rejected
from router.http.objects import ModelObject
from router.service import GenerationService

DRAFT_SUFFIX = "-draft"


class ServedModels:
    """The served models by their names."""

    def __init__(self, service: GenerationService, config: RouterConfig) -> None:
        self._service = service
        self._name = config.served_name
        self._draft_name = config.served_name + DRAFT_SUFFIX
        self._created = int(time.time())

    def require(self, name: str) -> None:
        """Raise Rejected if there is no model with this name."""
        if name == self._name:
            return
        absence = self._service.draft_model_absence
        if name != self._draft_name:
            served = f"{self._name!r}" if absence else f"{self._name!r} and {self._draft_name!r}"
            raise _not_found(f"model is {quoted(name, 256)}, this deployment serves {served}")
        if absence:
            raise _not_found(
                f"model is {quoted(name, 256)}, but {absence}; this deployment serves {self._name!r}"
            )

    def check(self, name: Any) -> None:
        """Refuse a request, by the model that it names, before the work of its prompt.

        Raises:
            Rejected: There is no such model.
            Overloaded: The queue for the targets is full.
        """
        if isinstance(name, str) and name:
            self.require(name)
        if name != self._draft_name:
            self._service.check_queue()

    def addressed(self, request: HttpRequest) -> HttpRequest:
        """Return a request to the model that it names, by default to the targets'.

        Raises:
            Rejected: There is no such model.
            InvalidRequest: The request sets a mode of targets for the drafter's own model.
        """
        name = request.body.model or self._name
        self.require(name)
        if request.body.model is None:
            request = replace(request, body=request.body.model_copy(update={"model": name}))
        if name == self._name:
            return request
        return replace(request, requests=tuple(map(_to_drafter, request.requests)))

    async def listed(self) -> list[ModelObject]:
        """Return the models that can be requested at present; the targets' is always listed."""
        names = [self._name, *([self._draft_name] if self._service.draft_model is not None else [])]
        return [await self.described(name) for name in names]

    async def described(self, name: str) -> ModelObject:
        """Return the description of one model."""
        known: dict[str, Any] = {"id": name, "created": self._created, "root": name, "parent": None}
        if self._service.has_target:
            info = await self._service.describe()
            model = info.target if name == self._name else self._service.draft_model
            context_length = None if model is None else model.context_length or None
            known |= {"max_model_len": context_length, "flyserve": info}
        return ModelObject(object="model", owned_by="flyserve", **known)


def _not_found(message: str) -> Rejected:
    return Rejected(404, message, "model", "model_not_found")


def _to_drafter(request: GenerateRequest) -> GenerateRequest:
    if (mode := request.speculation.mode) is not None:
        found = (
            f"is {mode.value}, must be absent: no target takes part in responses of the drafter's own model"
        )
        raise InvalidRequest.of("speculation.mode", found)
    return replace(request, speculation=replace(request.speculation, mode=Mode.DRAFT))
