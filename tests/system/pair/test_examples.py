"""The programs in `examples/`, as a newcomer runs them, against the demo pair."""

import json
import os
import subprocess
import sys

from tests.support.processes import ROOT, Deployment

ANSWER = "Answer: 35"


def run(name: str, *addresses: str, typed: str = "", **variables: str) -> str:
    """Return what an example prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *addresses],
        env={**os.environ, **variables},
        input=typed,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_openai_package_asks_whole_and_streamed(deployment: Deployment) -> None:
    printed = run("openai_chat.py", deployment.router.urls[0])
    assert printed.count(ANSWER) == 2 and " tokens" in printed


def test_the_generated_stubs_suffice(deployment: Deployment) -> None:
    printed = run("grpc_stream.py", deployment.router.address)
    assert ANSWER in printed and "tau" in printed


def test_every_mode_shows_its_verdicts(deployment: Deployment) -> None:
    printed = run("verdicts.py", deployment.router.address)
    assert all(f"{mode}:" in printed for mode in ("plain", "exact", "fly")) and printed.count(ANSWER) == 3


def test_ten_lines_suffice_for_a_chat(deployment: Deployment) -> None:
    assert ANSWER in run("chat.py", FLYSERVE_ADDRESS=deployment.router.address)
    assert len((ROOT / "examples" / "chat.py").read_text().splitlines()) <= 10


def test_a_conversation_ends_with_an_empty_line(deployment: Deployment) -> None:
    question = "Karl has 7 books. Now Karl loses 3 books. Next Karl wins 31 books."
    printed = run(
        "chat_loop.py",
        deployment.router.urls[0],
        typed=f"{question} How many books does Karl have now?\n\n",
    )
    assert ANSWER in printed and printed.count("> ") == 2


def test_a_prediction_is_counted(deployment: Deployment) -> None:
    without, good, wrong = run("prediction.py", deployment.router.urls[0]).splitlines()[1::2]
    assert "'accepted_prediction_tokens': 0," in without and "'rejected_prediction_tokens': 0" in without
    assert "'accepted_prediction_tokens': 0," in wrong
    assert int(good.split("'accepted_prediction_tokens': ")[1].split(",")[0]) > 20


def test_an_answer_keeps_to_its_schema(deployment: Deployment) -> None:
    *lines, counted = run("structured_answer.py", deployment.router.address).splitlines()
    assert json.loads("".join(lines)).keys() == {"answer", "is_certain", "colours"}
    assert "draft tokens accepted" in counted
