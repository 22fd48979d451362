"""Ray actors of drafter replicas that run a model."""

from collections.abc import Sequence
from typing import Any

from services.common.actor import ServiceActor
from services.common.config import parse
from services.common.host import Host
from services.drafter.config import DRAFTERS


class DrafterActor(ServiceActor):
    """Serve drafts from the constructor on."""

    role = "drafter"

    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
        from services.drafter.servicer import create_host

        return await create_host(parse(DRAFTERS, config, "drafter"))
