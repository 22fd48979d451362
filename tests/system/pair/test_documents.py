"""The commands and programs in the documents work as described; those that are not run say why.

test_readme.py pastes the blocks of the README.
"""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from orchestration.deployment.file import Deployment as DeploymentFile
from tests.support.documents import GUIDES, Snippet, commands, snippets
from tests.support.processes import ROOT, Deployment

TRIED = [snippet for snippet in snippets(*GUIDES) if snippet.reason is None]
RUN = [snippet for snippet in TRIED if snippet.language != "yaml"]
CONFIGURATIONS = [snippet for snippet in TRIED if snippet.language == "yaml"]
INTERPRETERS = {"python": (sys.executable, "-c"), "sh": ("bash", "-euo", "pipefail", "-c")}


def typed(code: str, deployment: Deployment) -> str:
    """Return the code with the addresses and the model name of this deployment."""
    (url,) = deployment.router.urls
    here = {
        "http://127.0.0.1:8000": url,
        "127.0.0.1:50051": deployment.router.address,
        "flyserve-demo": "target",
        ".venv/bin/": "",
    }
    for documented, actual in here.items():
        code = code.replace(documented, actual)
    return code


def environment(deployment: Deployment) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "FLYSERVE_ADDRESS": deployment.router.address,
    }


@pytest.mark.parametrize("snippet", RUN, ids=lambda snippet: snippet.place)
def test_a_snippet_runs(snippet: Snippet, deployment: Deployment) -> None:
    command = (*INTERPRETERS[snippet.language], typed(snippet.code, deployment))
    ran = subprocess.run(
        command, cwd=ROOT, env=environment(deployment), capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    assert snippet.prints in ran.stdout.replace("\n", " ")


@pytest.mark.parametrize("snippet", CONFIGURATIONS, ids=lambda snippet: snippet.place)
def test_a_configuration_has_known_keys(snippet: Snippet) -> None:
    values = yaml.safe_load((ROOT / "helm" / "flyserve" / "values.yaml").read_text("utf-8"))
    known = DeploymentFile.model_fields.keys() | values.keys()
    for part in yaml.safe_load_all(snippet.code):
        assert part.keys() <= known


def test_what_is_not_run_says_why() -> None:
    unsaid = [
        snippet.place for snippet in snippets() if snippet.reason is not None and len(snippet.reason) < 20
    ]
    unknown = [snippet.place for snippet in RUN if snippet.language not in INTERPRETERS]
    assert not unsaid and not unknown


@pytest.mark.parametrize("command", commands())
def test_a_command_that_a_text_mentions_exists(command: str) -> None:
    program, *words = re.split(r"\s+", command.split(" --help")[0])
    if program == "make":
        assert re.search(rf"^{re.escape(words[0])}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        return
    start = 2 if program == "python" else 0
    flags = [word.partition("=")[0].strip("[],") for word in words if word.startswith(("--", "[--"))]
    names = [word for word in words[start:] if re.fullmatch(r"[a-z][a-z-]*", word)]
    head = (sys.executable, *words[:2]) if program == "python" else ("flyserve", *names[:1])
    text = help_of(head)
    assert [flag for flag in flags if flag not in text] == []


@cache
def help_of(head: tuple[str, ...]) -> str:
    """Return the output of a command's `--help`, which must succeed."""
    ran = subprocess.run(
        (*head, "--help"),
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
