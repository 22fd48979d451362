"""Kill the processes of `flyserve up` in turn during many exact streams: no response changes.

`FLYSERVE_CHAOS_S=60` extends the test to a minute. The controller hosts the registry, so both end together.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from fly.errors import NotReady
from fly.messages import Role
from flyserve import Client, StreamBroken
from orchestration.control.status import ReplicaState
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import ACTORS
from orchestration.local.runner import LocalDeployment, LocalOptions, local_deployment
from services.common.config import parse
from tests.nightly.ray.cluster_rig import SIMULATED, model
from tests.support.local_ray import FOLDER
from tests.support.streams import Streams

CHAOS_S = float(os.environ.get("FLYSERVE_CHAOS_S", "8"))
KILL_EVERY_S = 2.0
WHOLE_AGAIN_S = 600.0
CONTROLLER = "Controller"
pytestmark = pytest.mark.timeout(1800 + 10 * CHAOS_S)


class Killer:
    """Kills processes of a deployment in turn; the deployment must restart them.

    Attributes:
        killed: Number of kills per actor class.
        seconds: Time from the first kill to the last.
    """

    def __init__(self, actors: Mapping[Role, str]) -> None:
        """Kill actors of these classes, and the controller."""
        names = [actors[role].rpartition(":")[2] for role in (Role.TARGET, Role.DRAFTER, Role.SUB_DRAFTER)]
        self.killed: Counter[str] = Counter()
        self._target = names[0]
        self._first_s: float | None = None
        self.seconds = 0.0
        self._names = itertools.cycle((*names, CONTROLLER))

    def kill(self) -> None:
        """Kill the next process in turn once it has started: the older of two targets, never the last one."""
        name = next(self._names)
        while len(found := sorted(processes_of(name), key=psutil.Process.create_time)) < self._least(name):
            time.sleep(0.05)
        found[0].kill()
        self.killed[name] += 1
        self._first_s = self._first_s or time.monotonic()
        self.seconds = time.monotonic() - self._first_s

    def _least(self, name: str) -> int:
        return 2 if name == self._target else 1


def processes_of(name: str) -> Iterator[psutil.Process]:
    """Yield the running processes of an actor class, found by the title that Ray sets."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            title = " ".join(process.cmdline())
            if title.startswith(f"ray::{name}") and "__init__" not in title:
                yield process


async def survive(streams: Streams, running: LocalDeployment, killer: Killer) -> None:
    """Run the streams while processes are killed in turn; wait until all replicas are ready again."""
    await streams.record_undisturbed()
    async with streams.running():
        for _ in range(int(CHAOS_S / KILL_EVERY_S)):
            await asyncio.sleep(KILL_EVERY_S)
            await asyncio.to_thread(killer.kill)
        await asyncio.wait_for(whole(running), WHOLE_AGAIN_S)


async def whole(running: LocalDeployment) -> None:
    """Return when every replica is ready."""
    while True:
        with contextlib.suppress(NotReady):
            status = await asyncio.to_thread(running.status)
            if all(row.state is ReplicaState.READY for row in status.replicas):
                return
        await asyncio.sleep(0.1)


@pytest.fixture(autouse=True)
def _finds_the_simulated_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ["PYTHONPATH"]]))


def described(**tiers: Any) -> Deployment:
    return parse(
        Deployment, {"sub_drafter": {"engine": "suffix"}, "router": {"grpc_port": 0}, **tiers}, "test"
    )


def test_64_streams_of_simulated_engines(tmp_path: Path) -> None:
    target = {"model": model(tmp_path, "target", base_s=0.4), "replicas": 2}
    drafter = {"model": model(tmp_path, "drafter", base_s=0.005, agreement=0.85)}
    actors = {**ACTORS, **SIMULATED}
    killer, options = Killer(actors), LocalOptions(actors=actors, startup_timeout_s=600.0)
    with local_deployment(described(target=target, drafter=drafter), lambda _: None, options) as running:
        prompts = [f"prompt {number}" for number in range(64)]
        streams = Streams([running.address], prompts, new_tokens=48)
        asyncio.run(survive(streams, running, killer))
        assert_only_the_router_is_replaced(running)
    report(streams, killer)
    assert not streams.failures
    assert not streams.different
    assert killer.killed.total() == int(CHAOS_S / KILL_EVERY_S) and len(killer.killed) == 4
    assert streams.num_replays + streams.num_resumed > 0 and streams.num_answered >= 64


class Replaced(Exception):
    """Raised to end the wait of a deployment, once it has reported a new router."""


def assert_only_the_router_is_replaced(running: LocalDeployment) -> None:
    """Kill the router in mid-stream; the next request is served at its address, by the same replicas."""

    def pids() -> list[int]:
        names = [actor.rpartition(":")[2] for actor in (*SIMULATED.values(), ACTORS[Role.SUB_DRAFTER])]
        return sorted(process.pid for name in names for process in processes_of(name))

    def note(line: str) -> None:
        lines.append(line)
        if "serves again" in line:
            raise Replaced

    before, address, lines = pids(), running.address, list[str]()
    with Client(address, retries=0) as client:
        stream = client.stream("a prompt", 200)
        next(stream)
        os.kill(running.router.process.pid, signal.SIGKILL)
        with pytest.raises(StreamBroken):
            list(stream)
        with pytest.raises(Replaced):
            running.wait(note)
        assert running.address == address and len(client.generate("a prompt", 8).tokens) == 8
    assert pids() == before and len(before) == 4
    assert lines[0].startswith("the router ended with status -9 (SIGKILL); ") and len(lines) == 2


def report(streams: Streams, killer: Killer) -> None:
    """Print the counts, shown by `pytest -s`."""
    print(
        f"{streams.num_answered} responses, {streams.num_replays} replays, {streams.num_resumed} resumed,"
        f" {len(streams.failures)} failed, {len(streams.different)} differ;"
        f" killed within {killer.seconds:.0f} s: {dict(killer.killed)}"
    )
