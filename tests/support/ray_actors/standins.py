"""Actors and a router that follow the services' contract without a model."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyserve.core.errors import ModelError
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

    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
        return _host(config["address"])


class StandInDrafter(StandIn):
    role = "drafter"


class StandInSubDrafter(StandIn):
    role = "sub_drafter"


class Slow(StandIn):
    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
        threading.Event().wait()
        raise AssertionError


class Broken(StandIn):
    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
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
    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
        return await super().build(_simulated(config), followers)


class SimulatedDrafter(DrafterActor):
    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
        return await super().build(_simulated(config), followers)


class Follower:
    def end(self, timeout_s: float) -> None:
        threading.Event().wait(timeout_s)


class SharedStandIn(StandIn):
    follower = Follower
