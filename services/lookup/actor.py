"""Ray actors of replicas that look tokens up."""

from collections.abc import Sequence
from typing import Any

from services.common.actor import ServiceActor
from services.common.config import parse
from services.common.host import Host
from services.lookup.config import SuffixConfig
from services.lookup.servicer import create_host


class SubDrafterActor(ServiceActor):
    """Serve proposals to drafters from the constructor on."""

    role = "sub_drafter"

    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
        return await create_host(parse(SuffixConfig, config, cls.role))


class LookupDrafterActor(SubDrafterActor):
    """Serve drafts to routers: the same servicer in another role."""

    role = "drafter"
