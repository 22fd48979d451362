"""A drafter replica as a Ray actor: thin around the host."""

from typing import Any

from services.common.actor import ServiceActor
from services.common.config import parse
from services.common.host import Host
from services.drafter.config import DrafterConfig


class DrafterActor(ServiceActor):
    """Serves from its constructor on."""

    role = "drafter"

    async def build(self, config: dict[str, Any]) -> Host:
        from services.drafter.servicer import create_host

        return await create_host(parse(DrafterConfig, config, "drafter"))


class ModelSubDrafterActor(DrafterActor):
    """A sub-drafter replica that runs a model: the drafter's own servicer under another role."""

    role = "sub_drafter"
