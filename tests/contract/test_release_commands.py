"""`flyserve upgrade` as a command, with the real helm's flags and stand-ins for what needs a cluster."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from flyserve.cli import app
from orchestration.release.commands import Release
from tools.chart import CHART

HELM = Path(sys.executable).with_name("helm")
STAND_IN = f"""#!{sys.executable}
import json, subprocess, sys
from pathlib import Path
folder, words = Path(__file__).parent, [Path(__file__).name, *sys.argv[1:]]
given = next((words[i + 1] for i, word in enumerate(words) if word == "--values"), None)
call = {{"words": words, "values": given and json.loads(Path(given).read_text())}}
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(call) + "\\n")
if (after := folder / " ".join(["after", *words[:2]])).exists():
    after.rename(folder / "answers")
if words[1] == "show":
    sys.exit(subprocess.run([{str(HELM)!r}, *words[1:]]).returncode)
for start, (status, text) in json.loads((folder / "answers").read_text()).items():
    if " ".join(words).startswith(start) and (status == 0 or "--dry-run=server" in words):
        print(text)
        sys.exit(status)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs helm and kubectl on the PATH; `answers` has their output by the first words of a call."""
    for name in ("helm", "kubectl"):
        program = tmp_path / name
        program.write_text(STAND_IN)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    answers = {
        "helm get metadata": (0, json.dumps({"revision": 3, "appVersion": "0.1.0"})),
        "helm get values demo --namespace serving --output json --all": (0, json.dumps(values)),
        "helm get values": (0, "null"),
        "helm upgrade": (1, "Error: image of its running pods would mix: ray.standby"),
        "kubectl get raycluster": (0, "demo-flyserve"),
        "kubectl get deployment": (0, routers(2)),
        "kubectl get jobs": (
            0,
            jobs({"green-apply-3": "Complete", "blue-apply-3": "", "green-apply-2": "Failed"}),
        ),
    }
    (tmp_path / "answers").write_text(json.dumps(answers))
    return tmp_path


def routers(number: int) -> str:
    """Return what kubectl prints about the Deployment of the routers."""
    deployment = {"metadata": {"name": "demo-flyserve-router"}, "spec": {"replicas": number}}
    return json.dumps({"items": [deployment]})


def jobs(conditions: dict[str, str]) -> str:
    """Return what kubectl prints about Jobs, each with the last of its conditions; empty: it runs."""
    last = {"status": "True", "reason": "BackoffLimitExceeded", "message": "it has reached the limit"}
    items = [
        {
            "metadata": {"name": f"demo-flyserve-{name}-1a2b"},
            "status": {"conditions": [{"type": "Suspended", "status": "False"}, {**last, "type": condition}]},
        }
        for name, condition in conditions.items()
    ]
    return json.dumps({"items": items})


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def test_the_command_moves_a_release_and_says_where_it_is(folder: Path) -> None:
    (folder / "a.yaml").write_text("{image: {tag: '2'}, drafter: null}")
    (folder / "b.yaml").write_text("target: {threads: 2}")
    files = ["--values", str(folder / "a.yaml"), "--values", str(folder / "b.yaml")]
    done = CliRunner().invoke(app, ["upgrade", "demo", str(CHART), "--namespace", "serving", *files])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "1/3 start green beside blue",
        "2/3 move the routers to green",
        "3/3 remove blue",
        "done: set ray.active to green in your values",
    ]
    upgrades = [call for call in calls(folder) if call["words"][1] == "upgrade"]
    active = [call["values"]["ray"].get("active", "blue") for call in upgrades]
    assert active == ["blue", "blue", "green", "green"]
    own = {"image": {"tag": "2"}, "drafter": None, "target": {"threads": 2}, "ray": {"active": "green"}}
    assert upgrades[-1]["values"] == own
    (pods,) = (call["words"] for call in calls(folder) if "pods" in call["words"])
    assert "flyserve.io/role=router,flyserve.io/deployment=demo-flyserve,flyserve.io/color!=green" in pods


def test_a_failed_job_is_named_with_its_reason_and_the_release_returns(folder: Path) -> None:
    answers = json.loads((folder / "answers").read_text())
    answers["kubectl get jobs"] = (0, jobs({"green-apply-3": "Failed"}))
    (folder / "answers").write_text(json.dumps(answers))
    done = CliRunner().invoke(app, ["upgrade", "demo", str(CHART), "--namespace", "serving", "--replace"])
    assert done.exit_code != 0
    said = " ".join(done.output.split())
    assert "job/demo-flyserve-green-apply-3-1a2b: BackoffLimitExceeded: it has reached the limit" in said
    assert "kubectl -n serving logs job/demo-flyserve-green-apply-3-1a2b; revision 3 runs again" in said
    assert ["helm", "rollback", "demo", "3"] in [call["words"][:4] for call in calls(folder)]


@pytest.mark.parametrize("is_autoscaled", [True, False])
def test_a_rollback_leaves_an_autoscaler_its_routers(is_autoscaled: bool, folder: Path) -> None:
    answers = json.loads((folder / "answers").read_text())
    (every,) = (words for words in answers if words.endswith("--all"))
    values = json.loads(answers[every][1])
    values["pods"]["router"]["autoscaling"]["enabled"] = is_autoscaled
    answers |= {every: (0, json.dumps(values)), "kubectl get deployment": (0, routers(6))}
    (folder / "answers").write_text(json.dumps(answers))
    after = {"kubectl get deployment": (0, routers(1))}
    (folder / "after helm rollback").write_text(json.dumps(answers | after))
    release = Release("demo", "serving", 60)
    before = release.num_routers()
    release.roll_back(3)
    release.keep_routers(before)
    scaled = [call["words"] for call in calls(folder) if call["words"][1] == "scale"]
    wanted = "kubectl scale deployment demo-flyserve-router --namespace serving --replicas 6"
    assert scaled == ([wanted.split()] if is_autoscaled else [])


def test_an_upgrade_in_one_step_waits_for_the_job_and_the_routers(folder: Path) -> None:
    answers = json.loads((folder / "answers").read_text())
    del answers["helm upgrade"]
    answers["kubectl get jobs"] = (0, jobs({"blue-apply-3": "Complete"}))
    (folder / "answers").write_text(json.dumps(answers))
    done = CliRunner().invoke(app, ["upgrade", "demo", str(CHART), "--namespace", "serving"])
    assert done.exit_code == 0, done.output
    waited = [call["words"][:4] for call in calls(folder) if call["words"][0] == "kubectl"]
    assert waited == [
        ["kubectl", "get", "jobs", "--namespace"],
        ["kubectl", "rollout", "status", "deployment"],
    ]
    assert calls(folder)[-1]["words"][-2:] == ["--timeout", "3600s"]


@pytest.mark.parametrize("nulls", ["image: {tag: null, digest: null}", "ray:", "{ray: {active: null}}"])
def test_a_key_of_the_values_may_be_null(nulls: str, folder: Path) -> None:
    (folder / "values.yaml").write_text(nulls)
    values = ["--values", str(folder / "values.yaml")]
    done = CliRunner().invoke(app, ["upgrade", "demo", str(CHART), "--namespace", "serving", *values])
    assert done.exit_code == 0, done.output
    *_, last = (call["values"] for call in calls(folder) if call["words"][1] == "upgrade")
    given = yaml.safe_load(nulls)
    assert last == {**given, "ray": {"active": "green"}}


def test_helm_knows_every_argument_that_it_gets(folder: Path) -> None:
    CliRunner().invoke(app, ["upgrade", "demo", str(CHART), "--namespace", "serving"])
    Release("demo", "serving", 60).roll_back(3)
    nowhere = {**os.environ, "KUBECONFIG": str(folder / "none"), "HELM_KUBEAPISERVER": "http://127.0.0.1:1"}
    tried = set()
    for words in (call["words"] for call in calls(folder) if call["words"][0] == "helm"):
        if words[1] == "show":
            continue
        given = words.index("--values") + 1 if "--values" in words else None
        if given is not None:
            (folder / "given.yaml").write_text("{}")
            words = [*words[:given], str(folder / "given.yaml"), *words[given + 1 :]]
        done = subprocess.run([str(HELM), *words[1:]], env=nowhere, capture_output=True, text=True)
        assert done.returncode == 1 and "connection refused" in done.stderr, (words, done.stderr)
        tried.add(" ".join(words[1:3]))
    assert tried == {"get metadata", "get values", "upgrade demo", "rollback demo"}


@pytest.mark.parametrize(
    ("content", "message"), [("[1]", "is no mapping"), ("{", "expected"), (None, "No such file")]
)
def test_a_values_file_that_cannot_be_read_is_named(content: str | None, message: str, folder: Path) -> None:
    file = folder / "values.yaml"
    if content is not None:
        file.write_text(content)
    done = CliRunner().invoke(app, ["upgrade", "demo", str(CHART), "--values", str(file)])
    assert done.exit_code == 2
    assert f"--values {file}" in done.output and message in done.output
    assert not (folder / "calls").exists()


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["upgrade", "demo", str(CHART)])
    assert done.exit_code == 2
    assert "helm is not on the PATH" in done.output
