"""Output and errors of the cluster commands, without a cluster."""

import io
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flyserve.cli import app
from flyserve.cli.cluster import apply, scaling
from flyserve.cli.cluster import status as status_command
from flyserve.cli.cluster.scaling import parse_tiers
from flyserve.cli.cluster.status import is_complete, status_view
from flyserve.core.errors import ConfigError, NotReady
from flyserve.core.messages import Role
from orchestration.control.autoscaler import AutoscalingStatus
from orchestration.control.instances import Node
from orchestration.control.status import DeploymentStatus, ReplicaState, TierStatus
from orchestration.deployment.diff import Report, changes
from orchestration.deployment.file import Deployment, load_deployment
from orchestration.deployment.tiers import ModelTier
from orchestration.local.local_ray import (
    LocalDeploymentInfo,
    find_local_deployment,
    publish_local_deployment,
)
from orchestration.machine.serving import settled_deployment
from services.common.machine.gpus import Gpu
from services.common.machine.machine import Machine
from tests.unit.flyserve.sample_status import FAILED, READY, status


def printed(status: DeploymentStatus) -> list[str]:
    console = Console(file=io.StringIO(), width=40, soft_wrap=True, highlight=False)
    console.print(status_view(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_every_replica_is_a_line_that_is_never_cut_and_faults_have_their_remedies() -> None:
    lines = printed(status(READY, FAILED))
    assert lines[0] == "main: registry 10.0.0.1:7, controller started 2 times"
    assert lines[1] == "target 1/2 (1 to be replaced)"
    assert lines[3].split() == [
        *("target-0", "3", "ready", "7", "s", "10.0.0.1", "(ab12)"),
        *("10.0.0.1:50100", "5", "2", "25%", "of", "200"),
    ]
    assert lines[4].split()[:3] == ["target-1", "9", "failed"]
    assert lines[5:] == ["target-1: /m: no weights; correct it", "look at this"]


def test_an_autoscaled_tier_says_its_limits_and_why_it_has_so_many() -> None:
    how = AutoscalingStatus(1, 8, "load 90%, target 70%: 3 if it lasts for 4 s more")
    tiers = (TierStatus(Role.TARGET, 2, 1, 1, how),)
    lines = printed(replace(status(READY), tiers=tiers))
    assert "target: 2 replicas of 1 to 8; load 90%, target 70%: 3 if it lasts for 4 s more" in lines


def test_a_deployment_is_complete_when_everything_serves_as_it_should() -> None:
    assert is_complete(status(READY))
    assert not is_complete(status(READY, FAILED))
    assert not is_complete(status(replace(READY, is_current=False)))


@pytest.mark.parametrize(
    ("least", "ready", "others", "complete"),
    [
        (1, 1, [ReplicaState.PENDING, ReplicaState.PENDING], True),
        (1, 2, [ReplicaState.DRAINING], True),
        (2, 1, [ReplicaState.PENDING], False),
        (0, 0, [ReplicaState.PENDING], False),
        (1, 1, [ReplicaState.STARTING], False),
        (1, 1, [ReplicaState.FAILED], False),
        (None, 1, [ReplicaState.PENDING], False),
    ],
)
def test_an_autoscaled_tier_is_complete_with_its_least_number_while_others_wait_for_room(
    least: int | None, ready: int, others: list[ReplicaState], complete: bool
) -> None:
    how = None if least is None else AutoscalingStatus(least, 8, "load 90%")
    tiers = (TierStatus(Role.TARGET, ready + len(others), ready, 0, how),)
    rows = [READY] * ready + [replace(READY, state=state) for state in others]
    assert is_complete(replace(status(*rows), tiers=tiers)) is complete
    assert not is_complete(replace(status(*rows, replace(READY, is_current=False)), tiers=tiers))


class Applied:
    """A controller that keeps the deployments that are applied to it."""

    def __init__(self) -> None:
        self.deployments: list[Deployment] = []
        self.apply = SimpleNamespace(remote=self._apply)
        self.deployment = SimpleNamespace(remote=lambda: self.deployments[-1].model_dump_json())
        self.address = SimpleNamespace(remote=lambda: "10.0.0.1:7")

    def _apply(self, deployment: str, source: str, replaces: bool) -> Report:
        self.deployments.append(Deployment.model_validate_json(deployment))
        return Report(is_new=False)


def use_cluster(
    patch: pytest.MonkeyPatch,
    controller: Applied,
    gpus_of_nodes: Sequence[float],
    local: LocalDeploymentInfo | None = None,
) -> None:
    """Let commands find nodes with these GPUs, and the controller once something was applied to it."""
    found = tuple(Node(str(number), "", {"GPU": gpus}) for number, gpus in enumerate(gpus_of_nodes))
    client = "orchestration.ray.controller_client"
    patch.setattr("orchestration.ray.connection.ray_connection", lambda *_: nullcontext(local))
    patch.setattr("orchestration.ray.api.nodes", lambda: found)
    patch.setattr(f"{client}.has_controller", lambda name: bool(controller.deployments))
    patch.setattr(f"{client}.find_controller", lambda name: controller)
    patch.setattr(f"{client}.create_controller", lambda *_, **__: controller)
    patch.setattr(apply, "ask", lambda method, *arguments: method.remote(*arguments))
    patch.setattr(apply, "read_status", lambda controller: status(READY))


@pytest.mark.parametrize(
    ("name", "gpus", "surge"), [("main", (0.7, 0.3), 0), ("other", (1, 1), 1)], ids=["its own", "another"]
)
def test_a_file_of_a_local_deployment_is_divided_as_up_divided_it(
    name: str, gpus: tuple[float, float], surge: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(16, 10**11, gpus=(Gpu("GPU-1", 80 * 10**9),), has_cuda=True)
    folder = tmp_path / "flyserve-1"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    publish_local_deployment(folder, "main", "127.0.0.1:9", machine=machine)
    controller = Applied()
    use_cluster(monkeypatch, controller, [3.0], find_local_deployment(None))
    file = tmp_path / "deployment.yaml"
    tier = f"{{model: {tmp_path}, gpus: auto}}"
    file.write_text(f"name: {name}\ntarget: {tier}\ndrafter: {tier}\n")
    result = CliRunner().invoke(app, ["apply", str(file)])
    assert result.exit_code == 0, result.stderr
    (applied,) = controller.deployments
    found = [tier.gpus for tier in applied.tiers.values() if isinstance(tier, ModelTier)]
    assert (tuple(found), applied.rollout.surge) == (gpus, surge)
    if name == "main":
        assert applied == settled_deployment(load_deployment(file), machine)


def test_a_file_that_is_applied_again_keeps_its_gpus_while_their_nodes_are_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, file = Applied(), tmp_path / "deployment.yaml"
    file.write_text(f"target: {{model: {tmp_path}, gpus: auto}}\n")
    for gpus_of_nodes in ([0.0, 1.0], [0.0]):
        with monkeypatch.context() as patch:
            use_cluster(patch, controller, gpus_of_nodes)
            result = CliRunner().invoke(app, ["apply", str(file)])
        assert result.exit_code == 0, result.stderr
    first, again = controller.deployments
    assert first.target.gpus == 1
    assert not changes(first, again)


def test_a_controller_of_an_older_version_does_not_know_its_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, file = Applied(), tmp_path / "deployment.yaml"
    controller.deployments.append(Deployment.model_validate({"target": {"model": "/earlier"}}))
    del controller.deployment
    use_cluster(monkeypatch, controller, [1.0])
    file.write_text(f"target: {{model: {tmp_path}, gpus: auto}}\n")
    result = CliRunner().invoke(app, ["apply", str(file)])
    assert result.exit_code == 0, result.stderr
    assert controller.deployments[-1].target.gpus == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_a_watch_into_a_pipe_outlasts_a_controller_that_does_not_answer(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter((status(READY), NotReady("the controller is being restarted"), status(READY)))

    def read_status(controller: None) -> DeploymentStatus:
        if (look := next(looks, None)) is None:
            raise KeyboardInterrupt
        if isinstance(look, NotReady):
            raise look
        return look

    monkeypatch.setattr(status_command, "controller_of", lambda *_: nullcontext())
    monkeypatch.setattr(status_command, "read_status", read_status)
    result = CliRunner().invoke(app, ["status", "--watch", "--every-s", "0.1", *(["--json"] * as_json)])
    assert (result.exit_code, result.stderr) == (130, "")
    fault = "the controller is being restarted"
    if as_json:
        first, second, third = map(json.loads, result.stdout.splitlines())
        assert (first["name"], second, third["name"]) == ("main", {"error": fault}, "main")
        return
    shown = [line for line in result.stdout.splitlines() if line.startswith(("main:", "unavailable:"))]
    head = "main: registry 10.0.0.1:7, controller started 2 times"
    assert shown == [head, f"unavailable: {fault}", head]


def test_a_watch_as_json_ends_at_once_if_nothing_answers_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_status(controller: None) -> DeploymentStatus:
        raise NotReady("no controller")

    monkeypatch.setattr(status_command, "controller_of", lambda *_: nullcontext())
    monkeypatch.setattr(status_command, "read_status", read_status)
    result = CliRunner().invoke(app, ["status", "--watch", "--json"])
    assert (result.exit_code, result.stdout) == (3, "") and "no controller" in result.stderr


def test_the_name_of_an_engine_is_no_markup_in_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = (TierStatus(Role.TARGET, 2, 1, 1, engine="[/vllm]"),)
    looks = iter([replace(status(READY, FAILED), tiers=tiers), status(READY)])
    monkeypatch.setattr(apply, "read_status", lambda controller: next(looks))
    monkeypatch.setattr(apply, "_POLL_S", 0.0)
    apply.wait_until_complete(None, timeout_s=60.0)
    assert next(looks, None) is None


def test_tiers_are_told_by_name_and_number() -> None:
    assert parse_tiers(["target=4", "sub_drafter=0"]) == {Role.TARGET: 4, Role.SUB_DRAFTER: 0}
    for wrong in ("target", "target=-1", "router=2", "target=x", "target=1234567890"):
        with pytest.raises(ConfigError, match="is none of target=N, drafter=N, sub_drafter=N"):
            parse_tiers([wrong])


def test_a_local_deployment_is_found_by_its_name_while_its_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    for folder in ("flyserve-1", "flyserve-2", "flyserve-3"):
        (tmp_path / folder).mkdir()
    publish_local_deployment(tmp_path / "flyserve-1", "main", "127.0.0.1:9")
    session = find_local_deployment("main")
    assert session is not None
    assert (session.ray_address, session.token, session.pid) == ("127.0.0.1:9", "secret", os.getpid())
    assert find_local_deployment("other") is None
    gone = {"name": "main", "ray_address": "h:1", "token": "t", "pid": 2**22 + 1, "started": "1"}
    (tmp_path / "flyserve-2" / "deployment.json").write_text(json.dumps(gone))
    assert find_local_deployment("main") == find_local_deployment(None) == session
    publish_local_deployment(tmp_path / "flyserve-3", "main", "127.0.0.1:10")
    for name in ("main", None):
        with pytest.raises(
            ConfigError, match=r"2 local deployments run, main \(process .*, Ray 127\.0\.0\.1:.*--ray-address"
        ):
            find_local_deployment(name)
    chosen = find_local_deployment(None, "127.0.0.1:10")
    assert chosen is not None and chosen.ray_address == "127.0.0.1:10"
    assert find_local_deployment("main", "head:6379") is None


@pytest.mark.parametrize(
    ("name", "ray_address", "message"),
    [
        ("zz", "127.0.0.1:9", "--name: is zz, but this machine runs main: name one of these"),
        (None, "", "main is a single process ({pid}), which has no controller: flyserve info --address h:1"),
        ("main", "", "start it without --single-process to scale it"),
    ],
)
@pytest.mark.parametrize("command", [["status"], ["scale", "target=2"], ["down"]])
def test_a_wrong_name_and_a_single_process_are_said(
    command: list[str],
    name: str | None,
    ray_address: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "flyserve-1").mkdir()
    publish_local_deployment(tmp_path / "flyserve-1", "main", ray_address, "h:1")
    result = CliRunner().invoke(app, [*command, *(["--name", name] if name else [])])
    assert result.exit_code == 2
    assert message.format(pid=os.getpid()) in result.stderr


class Unforced:
    """A controller that has room for two."""

    class scale:
        @staticmethod
        def remote(replicas: dict[Role, int], is_forced: bool) -> tuple[str, ...]:
            if not is_forced and max(replicas.values()) > 2:
                raise ConfigError("target=3: there is room for 2")
            return ("target.replicas: 1 -> 3",)


def test_force_insists_on_a_scale_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "controller_of", lambda *_: nullcontext(Unforced))
    monkeypatch.setattr(scaling, "ask", lambda method, *arguments: method.remote(*arguments))
    refused = CliRunner().invoke(app, ["scale", "target=3"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.strip() == "error: target=3: there is room for 2"
    forced = CliRunner().invoke(app, ["scale", "target=3", "--force"])
    assert (forced.exit_code, forced.stdout.strip()) == (0, "target.replicas: 1 -> 3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "absent.yaml"], "absent.yaml: No such file"),
        (["scale", "target"], "'target' is none of target=N"),
        (["drain"], "give the name of a replica, or --node"),
        (["drain", "target-0", "--node", "this"], "give the name of a replica, or --node"),
        (["router", "absent.yaml"], "absent.yaml: No such file"),
    ],
)
def test_wrong_input_is_one_line_before_anything_is_connected(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
