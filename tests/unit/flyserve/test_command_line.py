import errno
import inspect
import json
import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import get_args

import pytest
from typer.models import OptionInfo

from flyserve.cli import app
from flyserve.core.request import DraftLength, GenerateRequest, SamplingParams, SpeculationParams
from flyserve.core.types import Coupling, Mode, TailPolicy
from flyserve.wire.generation import request_from_wire
from orchestration.deployment.file import RolloutConfig
from orchestration.local.local_ray import publish_local_deployment
from tests.unit.flyserve.fake_generation import FakeGeneration, fails_with, rejected_address, run

UNREADABLE = Path("/proc/self/mem")
"""A file that everybody may open, and nobody can read from its start."""
DOWN_GRACE = ("down", "--grace-s")


@pytest.mark.parametrize("command", ["up", "chat", "info", "bench"])
def test_help_reads_well(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0 and "Usage" in result.stdout


def test_the_help_of_generate_groups_its_options_and_gives_examples() -> None:
    shown = run("generate", "--help").stdout
    places = [shown.index(part) for part in ("Arguments", "Options", "Sampling", "Speculation", "Connection")]
    assert places == sorted(places) and "Examples:" in shown[places[-1] :]
    assert "Exit status: 0 done" in run("--help").stdout


def test_generate_prints_the_text_and_one_line_of_statistics(served: tuple[FakeGeneration, str]) -> None:
    result = run("generate", "hello", "--address", served[1])
    assert result.exit_code == 0
    assert result.stdout == "the quick fox\n"
    assert "\x1b" not in result.output
    warning, statistics = result.stderr.splitlines()
    assert warning == "warning: short context"
    assert statistics == "3 tokens | 6.0 tokens/s | tau 3.00 | 1 rescued | first token after 12 ms"


def test_generate_passes_its_options_on(served: tuple[FakeGeneration, str]) -> None:
    service, address = served
    run(
        *("generate", "-", "--address", address, "--mode", "exact", "--preset", "vllm"),
        *("--draft-length", "0", "--max-new-tokens", "7", "--stop", "a", "--stop", "b"),
        *("--temperature", "0.7", "--seed", "18446744073709551615", "--coupling", "rejection"),
        *("--window", "4", "--threshold", "0.5", "--tail", "carry"),
        stdin="from a pipe\n",
    )
    assert request_from_wire(service.requests[0]) == GenerateRequest(
        prompt="from a pipe\n",
        max_new_tokens=7,
        sampling=SamplingParams(temperature=0.7, seed=2**64 - 1, coupling=Coupling.REJECTION),
        speculation=SpeculationParams(
            mode=Mode.EXACT,
            preset="vllm",
            draft_length=DraftLength(max=0),
            window=4,
            threshold=0.5,
            tail=TailPolicy.CARRY,
        ),
        stop=("a", "b"),
        request_id=service.requests[0].request_id,
    )


def test_a_policy_of_the_draft_length_is_refused(served: tuple[FakeGeneration, str]) -> None:
    service, address = served
    result = run("generate", "x", "--draft-length", "goodput:8", "--address", address)
    assert result.exit_code == 2 and not service.requests
    assert "--draft-length" in result.stderr and "draft_length.max_sequences" in result.stderr


def test_generate_prints_a_json_line_per_chunk(served: tuple[FakeGeneration, str]) -> None:
    result = run("generate", "hello", "--json-lines", "--logprobs", "0", "--address", served[1])
    first, last = map(json.loads, result.stdout.splitlines())
    assert (first["text"], first["request_id"], first["finish_reason"]) == ("the quick", "r1", None)
    assert (last["finish_reason"], last["statistics"]["tau"]) == ("stop_token", 3.0)
    assert served[0].requests[0].HasField("logprobs") and result.stderr == ""


def test_several_choices_are_shown_one_after_the_other(served: tuple[FakeGeneration, str]) -> None:
    result = run("generate", "hello", "--n", "2", "--address", served[1])
    assert result.stdout == "[choice 0]\nthe quick fox\n[choice 1]\nthe quick fox\n"
    assert result.stderr.count("3 tokens") == 2


@pytest.mark.parametrize(
    ("option", "value", "wrong"),
    [
        ("--n", "x", "is 'x', must be an integer"),
        ("--n", "0", "is '0', must be at least 1"),
        ("--seed", "1.5", "is '1.5', must be an integer"),
        ("--logprobs", "21", "is '21', must be at most 20"),
        ("--temperature", "hot", "is 'hot', must be a number"),
        ("--mode", "fast", "'fast' is not one of 'plain', 'exact', 'fly', 'draft'"),
    ],
)
def test_a_wrong_value_is_described_in_plain_words(option: str, value: str, wrong: str) -> None:
    shown = " ".join(run("generate", "hello", option, value).stderr.replace("│", " ").split())
    assert f"Invalid value for '{option}': {wrong}" in shown


def test_help_shows_ranges_and_choices_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    shown = run("generate", "--help").stdout + run("serve", "--help").stdout
    assert "x>=" not in shown and "<=x" not in shown and "18446744073709551615" not in shown
    for part in ("0 or more", "0 to 20", "float32|bfloat16", "builtin|vllm", "official|vllm|paper|flyserve"):
        assert part in shown, part


@pytest.mark.parametrize("address", ["foo", "http://127.0.0.1:8000", "host:", "host:grpc"])
def test_an_address_without_a_port_is_rejected(address: str) -> None:
    fails_with(run("info", "--address", address), f"address: is '{address}', must be host:port")


def test_a_host_that_nobody_knows_is_named_and_nothing_of_grpc_is_shown() -> None:
    result = run("info", "--retries", "0", "--address", "no-such-host.invalid:50051")
    fails_with(result, "no host is known by the name of no-such-host.invalid:50051", status=3)
    assert "resolving" not in result.stderr and "field:" not in result.stderr


class SilentHandler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_an_http_port_is_recognised_and_the_grpc_port_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for index, address in enumerate(("127.0.0.1:7001", "")):
        (tmp_path / f"flyserve-{index}").mkdir()
        publish_local_deployment(tmp_path / f"flyserve-{index}", f"pair-{index}", "h:1", address)
    with ThreadingHTTPServer(("127.0.0.1", 0), SilentHandler) as server:
        Thread(target=server.serve_forever).start()
        address = f"127.0.0.1:{server.server_port}"
        try:
            result = run("info", "--address", address)
        finally:
            server.shutdown()
    fails_with(result, f"{address} is no gRPC port", "served on this machine at 127.0.0.1:7001 (pair-0)")
    assert "pair-1" not in result.stderr, "it does not serve yet"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--seed", "-1"), "--seed"),
        (("--seed", "18446744073709551616"), "--seed"),
        (("--n", "0"), "--n"),
        (("--logprobs", "3"), "--logprobs"),
        (("--json", "--json-lines"), "--json-lines"),
        (("--tail", "keep"), "--tail"),
    ],
)
def test_a_bad_option_is_a_usage_error(options: tuple[str, ...], part: str) -> None:
    result = run("generate", "hello", *options, "--address", "127.0.0.1:1")
    assert result.exit_code == 2 and part in result.stderr


def test_the_exit_status_says_the_kind_of_an_error(served: tuple[FakeGeneration, str]) -> None:
    there = ("--address", served[1])
    fails_with(run("generate", "bad", *there), "max_new_tokens is 9000")
    fails_with(run("generate", "full", "--retries", "0", *there), "try again in 2.5 s", status=3)
    late = run("generate", "endless", "--json-lines", "--timeout-s", "1", *there)
    fails_with(late, "--timeout-s", status=3)
    fails_with(run("generate", "hello", "--address", "far:1", "--token", "x"), "plaintext", status=2)
    fails_with(run("generate", "hello", "--tls-key", "x", *there), "belong together", status=2)
    broken = run("generate", "endless", "--timeout-s", "1", *there)
    assert (broken.stdout, broken.exit_code) == ("the quick\n", 3)


@pytest.mark.parametrize("command", [("generate", "hello"), ("generate", "hello", "--json"), ("bench",)])
def test_a_deployment_that_is_not_there_is_one_line_with_the_remedy(command: tuple[str, ...]) -> None:
    address = rejected_address()
    fails_with(run(*command, "--address", address), f"nothing answers at {address}", "flyserve up", status=3)


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path.write_text(f"target: {{model: .}}\nrouter: {{grpc_port: {port}}}\n", encoding="utf-8")
        fails_with(run("up", str(path)), f"router.grpc_port: 127.0.0.1:{port} cannot be bound")
        ports = ("--port", "0", "--http-port", str(port))
        fails_with(run("up", str(path), *ports), f"router.http_port: 127.0.0.1:{port} cannot be bound")


@pytest.mark.parametrize("command", ["serve", "up", "apply", "pull"])
@pytest.mark.parametrize("name", ["x" * 300, "~no-such-user/model"])
def test_a_name_that_no_file_can_have_is_one_line(command: str, name: str, tmp_path: Path) -> None:
    copy = (str(tmp_path / "copy"),) if command == "pull" else ()
    fails_with(run(command, name, *copy), name)


def test_a_folder_that_may_not_be_looked_into_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_dir(path: Path) -> bool:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return os.path.isdir(path)

    monkeypatch.setattr(Path, "is_dir", is_dir)
    fails_with(run("serve", str(tmp_path)), f"{tmp_path}: Permission denied")


def test_pull_fills_a_folder_and_shows_its_progress(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"w" * 20_000_000)
    result = run("pull", str(source), str(copy))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{copy}: {source}, 2 files, 0.02 GB\n"
    assert result.stderr.splitlines()[-1] == "0.02 of 0.02 GB: model.safetensors"
    assert run("pull", str(source), str(copy), "--verify").exit_code == 0
    assert run("pull", str(source), str(copy), "--wait-only").exit_code == 0


def test_a_model_that_cannot_be_pulled_is_one_line(tmp_path: Path) -> None:
    fails_with(run("pull", "org/name", str(tmp_path / "copy")), "hf://org/name@revision")
    late = run("pull", "hf://org/name@main", str(tmp_path / "copy"), "--wait-only", "--timeout-s", "0")
    lines = late.stderr.splitlines()
    assert lines[0].startswith("waiting until") and "does not hold hf://org/name@main" in lines[1]
    assert late.exit_code == 3


def test_generate_prints_json(served: tuple[FakeGeneration, str]) -> None:
    response = json.loads(run("generate", "hello", "--json", "--address", served[1]).stdout)
    (choice,) = response["choices"]
    assert choice["tokens"][1] == {
        "id": 2,
        "verdict": "rescued",
        "choice": 7,
        "entropy": 1.5,
        "text": " quick",
        "choice_text": " slow",
        "logprobs": None,
    }
    assert choice["finish_reason"] == "stop_token"
    assert choice["statistics"]["tau"] == 3.0


@pytest.mark.parametrize("option", ["--prediction", "--json-schema"])
def test_a_file_that_is_no_text_is_named(
    option: str, tmp_path: Path, served: tuple[FakeGeneration, str]
) -> None:
    service, address = served
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for file, fault in ((tmp_path / "latin", "is not UTF-8, at byte 3"), (UNREADABLE, "cannot be read: ")):
        result = run("generate", "hello", option, str(file), "--address", address)
        fails_with(result, f"{option}: {file}: {fault}")
    for file, fault in ((tmp_path, "is a directory"), (tmp_path / "none", "does not exist")):
        result = run("generate", "hello", option, str(file), "--address", address)
        shown = " ".join(result.stderr.replace("│", " ").split())
        assert result.exit_code == 2 and option in shown and fault in shown
    assert not service.requests


def test_an_empty_prediction_is_none(tmp_path: Path, served: tuple[FakeGeneration, str]) -> None:
    (tmp_path / "empty").touch()
    file = str(tmp_path / "empty")
    assert run("generate", "hello", "--prediction", file, "--address", served[1]).exit_code == 0


def test_standard_input_that_is_no_text_is_one_line(served: tuple[FakeGeneration, str]) -> None:
    service, address = served
    for content in (b"caf\xe9", b"\xff\xfe\n"):
        fails_with(run("generate", "-", "--address", address, stdin=content), "standard input: is not UTF-8")
    assert not service.requests
    talk = run("chat", "--address", address, stdin=b"hi\ncaf\xe9\nho\n")
    assert talk.exit_code == 2 and talk.stderr.endswith(
        "error: standard input: line 2: is not UTF-8, at byte 3\n"
    )
    assert service.conversations == [[("user", "hi")]]


def test_line_ends_of_standard_input_are_line_feeds(served: tuple[FakeGeneration, str]) -> None:
    service, address = served
    run("generate", "-", "--address", address, stdin="café\r\nan\rd\n".encode())
    assert service.requests[0].prompt == "café\nan\nd\n"


@pytest.mark.parametrize("command", [("generate", "-"), ("chat",)])
def test_a_closed_standard_input_is_one_line(
    command: tuple[str, ...], served: tuple[FakeGeneration, str]
) -> None:
    words = [sys.executable, "-m", "flyserve", *command, "--address", served[1]]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: standard input: is closed\n")


def float_options() -> list[tuple[str, str, OptionInfo]]:
    """Return command, name and limits of every option that is a number with a fraction."""
    found = []
    for command in app.registered_commands:
        assert command.callback is not None and command.name is not None
        for parameter in inspect.signature(command.callback, eval_str=True).parameters.values():
            kind, *notes = get_args(parameter.annotation) or [None]
            if kind in (float, float | None) and isinstance(notes[0], OptionInfo):
                found.append((command.name, f"--{parameter.name.replace('_', '-')}", notes[0]))
    return found


def test_no_time_is_endless_or_no_number() -> None:
    times = [each for each in float_options() if each[1].endswith("-s")]
    assert {command for command, _, _ in times} >= {"down", "drain", "apply", "status", "pull", "generate"}
    for command, option, limits in times:
        assert limits.min is not None and limits.max is not None, (command, option)
        for wrong in ("nan", "inf", "-inf", "1e9"):
            result = run(command, option, wrong)
            shown = " ".join(result.stderr.replace("│", " ").split())
            assert result.exit_code == 2, (command, option, wrong)
            assert f"Invalid value for '{option}': is '{wrong}', must be at " in shown, shown


def test_nan_is_no_number_of_a_request(served: tuple[FakeGeneration, str]) -> None:
    service, address = served
    others = [option for command, option, _ in float_options() if command == "generate"]
    assert {"--temperature", "--top-p", "--threshold", "--max-logprob-gap"} <= {*others}
    for option in others:
        result = run("generate", "hello", option, "nan", "--address", address)
        assert result.exit_code == 2 and isinstance(result.exception, SystemExit), option
    assert not service.requests


def test_running_streams_may_have_as_long_as_the_controller_allows() -> None:
    (limits,) = (found for command, option, found in float_options() if (command, option) == DOWN_GRACE)
    for grace_s in (limits.min, limits.max):
        RolloutConfig(drain_s=grace_s)
    result = run("down", "--grace-s", "86401")
    assert result.exit_code == 2 and "must be at most 86400" in " ".join(result.stderr.split())
