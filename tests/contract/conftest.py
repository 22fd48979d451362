"""Fixtures of tests on real sockets: model folders, certificates, a simulated target, an HTTP client."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from flyserve.core.messages import Role
from services.engine.simulation.clock_engine import ClockEngine
from services.target.builtin import BuiltinTarget
from services.target.servicer import host_target
from tests.contract.engine_rig import simulated
from tests.contract.fakes import save_tokenizer
from tests.contract.http_rig import HttpRig, serving_http
from tests.support.certificates import Authority
from tests.support.serving import TRANSPORTS, connected


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a folder with a tokenizer, which is all that a router needs of a model."""
    return save_tokenizer(tmp_path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def engine() -> AsyncIterator[ClockEngine]:
    async with simulated(Role.TARGET) as engine:
        yield engine


@pytest.fixture(params=TRANSPORTS)
async def channel(engine: ClockEngine, request: pytest.FixtureRequest) -> AsyncIterator[grpc.aio.Channel]:
    """Return a channel to a target, over a socket and within the process."""
    async with connected(host_target(BuiltinTarget(engine), request.param)) as channel:
        yield channel


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[HttpRig]:
    """Return a router with an HTTP port, and its clients."""
    async with serving_http(tmp_path) as rig:
        yield rig
