"""A target replica as a Ray actor: thin around the host."""

from typing import Any

from services.common.actor import ServiceActor
from services.common.config import parse
from services.common.host import Host
from services.target.config import TargetConfig


class TargetActor(ServiceActor):
    """Serves from its constructor on."""

    role = "target"

    async def build(self, config: dict[str, Any]) -> Host:
        from services.target.servicer import create_host

        return await create_host(parse(TargetConfig, config, "target"))
