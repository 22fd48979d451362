"""`flyserve up` on a Ray of this machine that cannot start, or cannot go on: one line has the cause."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from flyserve.core.errors import ConfigError, ModelError, NotReady
from flyserve.core.messages import Role
from flyserve.v1 import common_pb2
from flyserve.v1.drafter_pb2_grpc import DrafterStub
from flyserve.wire.streams import info_from_wire
from orchestration.deployment.file import Deployment
from orchestration.deployment.tiers import SuffixDrafter
from orchestration.local.runner import LocalOptions, local_deployment
from orchestration.local.supervisor import RestartLimit
from tests.support.local_ray import OPTIONS, STANDINS, by_name, command, eventually, quiet


def test_a_drafter_without_a_model_is_scaled_and_a_router_that_ends_too_often_is_an_error(
    small: Deployment,
) -> None:
    deployment = small.model_copy(update={"drafter": SuffixDrafter(response_cache_tokens=1024)})
    options = replace(OPTIONS, router_restarts=RestartLimit(1, 3600.0))
    with local_deployment(deployment, quiet, options) as running:
        with grpc.insecure_channel(by_name(running)["drafter-0"][0]) as channel:
            info, load = info_from_wire(DrafterStub(channel).Info(common_pb2.InfoRequest(), timeout=600))
        assert (info.role, info.architecture, info.max_sequences) == (Role.DRAFTER, "suffix", 64)
        assert load.kv_capacity
        assert command("scale", "drafter=2").strip() == "drafter.replicas: 1 -> 2 (scales the tier)"
        eventually(lambda: "drafter-1" in by_name(running))

        assert (running.address, running.http_url) == ("127.0.0.1:1", "http://127.0.0.1:2")

        def kill_again(line: str) -> None:
            if "serves again" in line:
                os.kill(running.router.process.pid, signal.SIGKILL)

        kill_again("serves again")
        with pytest.raises(
            NotReady, match=r"ended with status -9 \(SIGKILL\); it is restarted at most 1 times"
        ):
            running.wait(kill_again)


def test_a_replica_that_cannot_start_is_reported_with_the_cause(
    deployment: Deployment, tmp_path: Path
) -> None:
    options = LocalOptions(actors={**STANDINS, Role.DRAFTER: "standins:Broken"}, router="standin_router")
    with (
        pytest.raises(ModelError) as error,
        local_deployment(deployment, quiet, options),
    ):
        pass
    assert str(error.value) == f"drafter-0 cannot be started: {tmp_path}: no weights in the folder"


def test_a_start_that_takes_too_long_names_the_missing_replicas(deployment: Deployment) -> None:
    options = LocalOptions(
        actors={**STANDINS, Role.TARGET: "standins:Slow"}, router="standin_router", startup_timeout_s=120.0
    )
    with (
        pytest.raises(NotReady, match=r"of 4 replicas were not ready after 120 s: .*target-0, target-1"),
        local_deployment(deployment, quiet, options),
    ):
        pass


def test_a_failed_router_is_reported_with_the_reason(small: Deployment) -> None:
    options = LocalOptions(actors=STANDINS, router="standin_broken_router")
    with (
        pytest.raises(ConfigError, match="standin_broken_router: cannot serve"),
        local_deployment(small, quiet, options),
    ):
        pass


def test_an_interrupt_ends_everything(small: Deployment) -> None:
    with pytest.raises(KeyboardInterrupt), local_deployment(small, quiet, OPTIONS) as running:
        os.kill(os.getpid(), signal.SIGINT)
        running.wait()
