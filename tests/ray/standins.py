"""Actors and a router that follow the services' contract without a model."""

import threading
from typing import Any

from services.common.actor import ServiceActor
from services.common.host import Host, Service


async def _nothing() -> None:
    pass


def _host(address: str) -> Host:
    return Host(Service("flyserve.test.Nothing", lambda server: None, _nothing), address)


class StandIn(ServiceActor):
    role = "target"

    async def build(self, config: dict[str, Any]) -> Host:
        return _host(config["address"])


class StandInDrafter(StandIn):
    role = "drafter"


class StandInSubDrafter(StandIn):
    role = "sub_drafter"


class Slow(StandIn):
    async def build(self, config: dict[str, Any]) -> Host:
        threading.Event().wait()
        raise AssertionError


class Broken(StandIn):
    async def build(self, config: dict[str, Any]) -> Host:
        from fly.errors import ModelError

        raise ModelError(f"{config['model']}: no weights\nin the folder")
