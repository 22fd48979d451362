"""Actors and a router that follow the services' contract without a model."""

import json
import threading
from pathlib import Path
from typing import Any

from fly.errors import ModelError
from services.common.actor import ServiceActor
from services.common.host import Host, Service
from services.drafter.actor import DrafterActor
from services.target.actor import TargetActor


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
        raise ModelError(f"{config['model']}: no weights\nin the folder")


def _simulated(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with the parameters of a simulated model, read from the model's folder."""
    own = dict(config)
    folder = Path(own.pop("model"))
    try:
        parameters = json.loads((folder / "simulated.json").read_text())
    except OSError:
        raise ModelError(f"{folder}: no such model on this node") from None
    return {**own, "simulated": parameters}


class SimulatedTarget(TargetActor):
    async def build(self, config: dict[str, Any]) -> Host:
        return await super().build(_simulated(config))


class SimulatedDrafter(DrafterActor):
    async def build(self, config: dict[str, Any]) -> Host:
        return await super().build(_simulated(config))


class Follower:
    def end(self, timeout_s: float) -> None:
        threading.Event().wait(timeout_s)


class SharedStandIn(StandIn):
    follower = Follower
