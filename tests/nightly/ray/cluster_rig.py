"""Three nodes on this machine, a deployment of simulated engines on them, a router, and load."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flyserve import Client, SpeculationParams
from flyserve.core.messages import Role
from flyserve.core.types import Mode
from orchestration.control.status import DeploymentStatus, ReplicaState, ReplicaStatus
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import ACTORS
from orchestration.ray.controller_client import create_controller, get_result, stop_controller
from services.common.config import parse
from tests.contract.fakes import VOCAB_SIZE, save_tokenizer
from tests.support.descendants import titled
from tests.support.local_ray import HANG_S
from tests.support.ray_nodes import ray_nodes

NUM_STREAMS = 16
NEW_TOKENS = 96
PROMPTS = [f"prompt {index}" for index in range(NUM_STREAMS)]
SIMULATED = {Role.TARGET: "standins:SimulatedTarget", Role.DRAFTER: "standins:SimulatedDrafter"}


class Nodes:
    """The cluster's nodes; the head runs the controller and this process."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def kill(self, id: str) -> None:
        """Kill a node's processes."""
        (node,) = [node for node in self._cluster.worker_nodes if node.unique_id == id or node.node_id == id]
        self._cluster.remove_node(node, allow_graceful=False)

    @contextmanager
    def gcs_suspended(self) -> Iterator[None]:
        """Suspend Ray's GCS during the block."""
        (gcs,) = titled("gcs_server")
        gcs.suspend()
        try:
            yield
        finally:
            gcs.resume()

    def add(self, num_gpus: int = 0) -> str:
        return str(self._cluster.add_node(num_cpus=4, num_gpus=num_gpus).node_id)


@contextmanager
def three_nodes() -> Iterator[Nodes]:
    """Start a head and two workers of 4 logical CPUs each, with token authentication."""
    with ray_nodes(num_cpus=4) as (cluster, _):
        import ray

        for _ in range(2):
            cluster.add_node(num_cpus=4)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        yield Nodes(cluster)


def model(folder: Path, name: str, **parameters: Any) -> str:
    """Create the folder of a simulated model; return its path."""
    made = folder / name
    made.mkdir()
    save_tokenizer(made)
    shape = {"vocab_size": VOCAB_SIZE, "response_tokens": [400, 500], "base_s": 0.02}
    (made / "simulated.json").write_text(json.dumps({**shape, **parameters}))
    return str(made)


class Running:
    """A deployment and its controller."""

    def __init__(self, name: str, actors: dict[Role, str], port: int = 0) -> None:
        self.name = name
        data = {"name": name, "target": {"model": "/applied/later"}, "controller": {"port": port}}
        deployment = parse(Deployment, data, "test")
        self.handle = create_controller(deployment, "127.0.0.1", {**ACTORS, **actors})

    @property
    def registry(self) -> str:
        return str(get_result(self.handle.address.remote(), HANG_S))

    def apply(self, source: str = "test.yaml", **tiers: Any) -> Any:
        data = {"name": self.name, "rollout": {"drain_s": 20}, **tiers}
        deployment = parse(Deployment, data, "test")
        return get_result(self.handle.apply.remote(deployment.model_dump_json(), source, False), HANG_S)

    def status(self) -> DeploymentStatus:
        status: DeploymentStatus = get_result(self.handle.status.remote(), 30)
        return status

    def rows(self) -> dict[str, ReplicaStatus]:
        return {row.replica: row for row in self.status().replicas}

    def until(self, condition: Callable[[Sequence[ReplicaStatus]], bool]) -> None:
        """Return once the condition is true; retry while the controller is being restarted."""
        from flyserve.core.errors import NotReady

        end = time.monotonic() + HANG_S
        rows: Sequence[ReplicaStatus] = ()
        while time.monotonic() < end:
            try:
                rows = self.status().replicas
            except NotReady:
                continue
            if condition(rows):
                return
            time.sleep(0.05)
        raise AssertionError([(r.replica, r.generation, r.state, r.detail) for r in rows])

    def until_complete(self) -> None:
        """Return once every desired replica is ready and no other exists."""

        def is_complete(rows: Sequence[ReplicaStatus]) -> bool:
            return bool(rows) and all(row.state is ReplicaState.READY and row.is_current for row in rows)

        self.until(is_complete)

    def until_number(self, targets: int, drafters: int) -> None:
        """Return once these numbers are ready and no other replica exists."""

        def are_ready(rows: Sequence[ReplicaStatus]) -> bool:
            roles = [row.role for row in rows if row.state is ReplicaState.READY]
            counts = (roles.count(Role.TARGET), roles.count(Role.DRAFTER))
            return counts == (targets, drafters) and len(rows) == targets + drafters

        self.until(are_ready)

    def down(self) -> None:
        stop_controller(self.handle, 0.0, HANG_S)


class Load:
    """Exact streams, one after the other, on each of several threads.

    Attributes:
        num_replays: Replays of streams to a replica, for example after another replica was lost.
        num_resumed: Resumptions of streams at another router.
    """

    def __init__(self, *addresses: str, prompts: Sequence[str] = PROMPTS) -> None:
        self._client = Client(addresses)
        self._prompts = prompts
        self._pool = ThreadPoolExecutor(NUM_STREAMS)
        self._is_over = False
        self.num_replays = self.num_resumed = 0

    def generate(self, prompt: str) -> tuple[int, ...]:
        exact = SpeculationParams(mode=Mode.EXACT)
        stream = self._client.stream(prompt, NEW_TOKENS, speculation=exact)
        for _ in stream:
            pass
        response = stream.response
        self.num_replays += response.statistics.replays
        self.num_resumed += response.resumed
        return tuple(token.id for token in response.tokens)

    def answers(self) -> dict[str, tuple[int, ...]]:
        """Return the tokens of every prompt."""
        return dict(zip(self._prompts, self._pool.map(self.generate, self._prompts), strict=True))

    @contextmanager
    def running(self, prompts: Sequence[str] = ()) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
        """Generate during the block; yield a list that is complete at its end, where failed streams raise."""
        answered: list[tuple[str, tuple[int, ...]]] = []
        self._is_over = False

        def work(prompt: str) -> None:
            while not self._is_over:
                answered.append((prompt, self.generate(prompt)))

        workers = [self._pool.submit(work, prompt) for prompt in prompts or self._prompts]
        try:
            yield answered
        finally:
            self._is_over = True
            for worker in workers:
                worker.result(HANG_S)

    @contextmanager
    def undisturbed(self, step: str, expected: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
        """Generate before the block, during it, and until as many responses more; check all of them.

        Print what `docs/operate.md` shows about this `step`.
        """
        replays, resumed = self.num_replays, self.num_resumed
        with self.running() as answered:
            self._wait_for_more(answered)
            begin = time.monotonic()
            yield
            took_s = time.monotonic() - begin
            self._wait_for_more(answered)
        differ = sum(answer != expected[prompt] for prompt, answer in answered)
        replays, resumed = self.num_replays - replays, self.num_resumed - resumed
        print(f"{step}: {took_s:.1f} s, {len(answered)} responses, 0 failed, {differ} differ,", end=" ")
        print(f"{replays} replays, {resumed} resumed")
        assert not differ

    def _wait_for_more(self, answered: Sequence[object]) -> None:
        """Return after as many further responses as there are prompts."""
        before = len(answered)
        while len(answered) < before + len(self._prompts):
            time.sleep(0.05)

    def close(self) -> None:
        self._pool.shutdown()
        self._client.close()


def run(nodes: Nodes, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in another process; a later option overrides an earlier one."""
    flyserve = str(Path(sys.executable).with_name("flyserve"))
    name, *more = arguments
    words = [flyserve, name, "--ray-address", nodes.address, *more]
    return subprocess.run(
        words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )


def command(nodes: Nodes, *arguments: str) -> str:
    """Run a command that must succeed; return its output."""
    done = run(nodes, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
