"""The command line against a real router process with a simulated target."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.contract.fakes import save_tokenizer
from tests.support.processes import ROOT, ServiceProcess, service

SIMULATED = '{"vocab_size": 304, "response_tokens": [12, 12], "base_s": 0.0}'
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    model = save_tokenizer(tmp_path_factory.mktemp("model"))
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    with (
        service("services.target", "--simulated", SIMULATED) as target,
        service("router", "--model", str(model), "--target", target.address, "--grpc-port", "0") as router,
    ):
        yield router


def flyserve(*arguments: str, address: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from flyserve.cli import main; main()", *arguments]
    environment = {**os.environ, "FLYSERVE_ADDRESS": address}
    return subprocess.run(
        command, cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def test_a_pipe_gets_the_text_and_nothing_else(router: ServiceProcess) -> None:
    flags = ("--mode", "plain", "--max-new-tokens", "8")
    done = flyserve("generate", "-", *flags, address=router.address, stdin="the quick")
    assert done.returncode == 0, done.stderr
    lines = flyserve("generate", "the quick", *flags, "--json-lines", address=router.address).stdout
    chunks = [json.loads(line) for line in lines.splitlines()]
    assert done.stdout == "".join(chunk["text"] for chunk in chunks) + "\n"
    assert done.stderr.startswith("8 tokens | ") and "\x1b" not in done.stdout + done.stderr


def test_a_conversation_goes_through_the_chat_template(router: ServiceProcess) -> None:
    done = flyserve("chat", "--json", "--mode", "plain", address=router.address, stdin="hi\nho\n")
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    printed = flyserve(
        "generate", "<user>hi<assistant>", "--json", "--mode", "plain", address=router.address
    ).stdout
    assert json.loads(printed)["choices"][0]["text"] == first["choices"][0]["text"]
    assert second["prompt_tokens"] > first["prompt_tokens"] + len(first["choices"][0]["tokens"])


def test_status_tells_models_defaults_and_limits(router: ServiceProcess) -> None:
    printed = json.loads(flyserve("info", "--json", address=router.address).stdout)["deployment"]
    assert (printed["target"]["architecture"], printed["drafter"]) == ("simulated", None)
    default = printed["default_speculation"]
    assert (default["mode"], default["preset"], default["tail"]) == ("fly", "flyserve", "carry")
    assert default["draft_length"] == {"max": 15}
    assert printed["choices_limit"] > 0 and printed["max_new_tokens_limit"] > 0


def test_a_rejection_is_one_line_with_its_status(router: ServiceProcess) -> None:
    done = flyserve("generate", "x", "--max-new-tokens", "100000000", address=router.address)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: max_new_tokens is 100000000, must be 1 to ")
    assert done.stderr.count("\n") == 1
