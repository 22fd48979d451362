"""A deployment in one process: deployments that it refuses, replicas that fail, its end."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flyserve import Client, SamplingParams
from flyserve.core.errors import ConfigError, ModelError, NotReady
from flyserve.core.messages import Role
from flyserve.core.response import Chunk
from flyserve.received import StreamBroken
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import ACTORS
from orchestration.local.local_ray import require_controller
from orchestration.local.single_process import SingleProcess, run_single_process
from services.common.config import parse
from services.common.host import Host
from services.target.actor import TargetActor
from tests.support.processes import TARGET_MODEL


def deployment(**changes: Any) -> Deployment:
    content = {
        "target": {"model": str(TARGET_MODEL), "kv_tokens": 4096, "threads": 1},
        "router": {"grpc_port": 0},
        **changes,
    }
    return parse(Deployment, content, "deployment")


def target(**keys: Any) -> dict[str, Any]:
    return {"target": {"model": str(TARGET_MODEL), **keys}}


def drafter(**keys: Any) -> dict[str, Any]:
    return {"drafter": {"model": str(TARGET_MODEL), **keys}}


def unexpected(*_: object) -> None:
    raise AssertionError("it must not start")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            drafter() | {"sub_drafter": {"replicas": 2}},
            "sub_drafter.replicas: is 2, but one process has at most one",
        ),
        (
            target(autoscaling={"min": 1, "max": 2}),
            "target.autoscaling: one process cannot be scaled",
        ),
        (target(engine="vllm", gpus=1), "target.engine: is vllm, which needs a process of its own"),
        (target(shards=2), "target.shards: is 2, each of them a process"),
        (
            target(gpus=1) | drafter(gpus=1),
            "gpus: the tiers have 2 together, but one process computes on one",
        ),
        (target(gpus=1) | drafter(gpus=0), "gpus: is 0 for one tier and not for another"),
    ],
)
def test_a_deployment_that_needs_more_than_a_process_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run_single_process(deployment(**changes), unexpected, unexpected, unexpected)
    assert fault in str(refused.value)
    assert "leave out --single-process" in str(refused.value)


class Failing(TargetActor):
    """A real target whose host the test keeps, to let it fail."""

    hosts: ClassVar[list[Host]] = []

    @classmethod
    async def build(cls, config: dict[str, Any], followers: Sequence[Any] = ()) -> Host:
        host = await super().build(config, followers)
        cls.hosts.append(host)
        return host


def test_a_failed_replica_ends_the_process_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # other deployments of this machine are elsewhere
    monkeypatch.setitem(ACTORS, Role.TARGET, f"{__name__}:Failing")
    loaded: list[str] = []

    def fail(serving: SingleProcess) -> None:
        assert serving.address.startswith("127.0.0.1:")
        with pytest.raises(ConfigError, match=f"single process .* --address {serving.address}"):
            require_controller("default")
        Failing.hosts[-1].failed.set()

    with pytest.raises(NotReady, match="target-0 can serve no more"):
        run_single_process(deployment(), loaded.append, fail, unexpected)
    assert loaded == ["target-0"]


def test_running_responses_have_the_drain_time_of_the_file() -> None:
    """Without any, a response is cut at once: 200 tokens would take a few seconds."""
    received: list[Chunk] = []
    running: list[bool] = []

    def stream(address: str) -> None:
        with Client(address, retries=0) as client:
            for chunk in client.stream("1 + 1 =", 200, SamplingParams(ignore_eos=True)):
                if not received:
                    os.kill(os.getpid(), signal.SIGTERM)
                received.append(chunk)

    with ThreadPoolExecutor() as pool:
        streams: list[Future[None]] = []
        run_single_process(
            deployment(rollout={"drain_s": 0}),
            lambda replica: None,
            lambda serving: streams.append(pool.submit(stream, serving.address)),
            lambda has_drained: running.append(not has_drained()),
        )
        with pytest.raises(StreamBroken):
            streams[0].result(timeout=240)
    assert 0 < sum(len(chunk.tokens) for chunk in received) < 200 and running == [True]


def test_a_model_that_cannot_be_loaded_ends_the_replicas_before_it(tmp_path: Path) -> None:
    """Two deployments cannot have replicas of one name in a process, so the second run shows it."""
    broken = deployment(drafter={"model": str(tmp_path)}, sub_drafter={}, router={"grpc_port": 0})
    for _ in range(2):
        loaded: list[str] = []
        with pytest.raises(ModelError, match=str(tmp_path)):
            run_single_process(broken, loaded.append, unexpected, unexpected)
        assert loaded[0] == "sub_drafter-0"
        assert len(loaded) > 1
