"""Logs of running processes name requests by their ids and contain no prompt and no response."""

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.v1 import generation_pb2 as pb
from router.generation import log_limit
from router.security.keys import issue_key
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.logs import formatter
from tests.contract.fakes import FakeTarget, HashModel, dies_at, save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, running
from tests.contract.telemetry_rig import fetch, running_with_telemetry

ROOT = Path(__file__).parents[2]
PROMPT = "the quick brown fox jumps over the lazy dog"
JSON = TelemetryConfig(log_format="json")


class Lines(logging.Handler):
    """Keeps every line of every level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(formatter(JSON, "all"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def log() -> Iterator[Lines]:
    lines, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(lines)
    root.setLevel(logging.DEBUG)
    yield lines
    root.setLevel(level)
    root.removeHandler(lines)


async def test_requests_are_logged_by_id_without_their_texts(tmp_path: Path, log: Lines) -> None:
    asked: dict[str, Any] = {"prompt_token_ids": None, "prompt": PROMPT, "stop": ["never said"]}
    async with running_with_telemetry(save_tokenizer(tmp_path), {"log_format": "json"}) as rig:
        answer = await rig.generate(EXACT, 60, request_id="logged", **asked)
        await rig.rejection(prompt=PROMPT, max_new_tokens=1 << 30)
    lines = [json.loads(line) for line in log.lines]
    (ended, rejected) = [line for line in lines if line["message"] == "request ended"]
    assert (ended["request_id"], ended["mode"], ended["outcome"]) == ("logged", "exact", "ok")
    assert ended["seconds"] > 0
    assert rejected["outcome"] == "invalid_request"
    ids = ", ".join(str(token.id) for token in answer.tokens[:3])
    everything = "\n".join(log.lines)
    for said in (PROMPT, "quick brown", "never said", answer.text, answer.text[:8], ids):
        assert said not in everything


async def test_rejected_requests_of_a_key_have_one_line_in_a_while(
    tmp_path: Path, log: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_limit, "_SECOND_S", 1e9)
    file = tmp_path / "keys.yaml"
    limits = ({"requests_per_minute": 1}, {})
    tokens = [issue_key(file, name, dict(each)) for name, each in zip("ab", limits, strict=True)]
    security = {"auth_tokens_file": str(file)}
    async with running(save_tokenizer(tmp_path), [FakeTarget(HashModel())], security=security) as rig:
        for token in tokens:
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError):
                    metadata = (("authorization", f"Bearer {token}"),)
                    await rig.stub.Generate(pb.GenerateRequest(), metadata=metadata)
    lines = [json.loads(line) for line in log.lines]
    found = [(line["message"], line["api_key"]) for line in lines if "api_key" in line]
    assert found == [("request ended", "a"), ("request ended", "b")]


async def test_a_stream_that_fails_is_logged_with_its_request(tmp_path: Path, log: Lines) -> None:
    targets = [FakeTarget(HashModel()), FakeTarget(HashModel())]
    dies_at(targets[0], 3)
    config = {"balancing": "round_robin", "replica_wait_s": 1.0}
    async with running(save_tokenizer(tmp_path), targets, **config) as rig:
        for index in range(2):
            await rig.generate(PLAIN, 20, request_id=f"request-{index}")
    lines = [json.loads(line) for line in log.lines]
    (failed,) = [line for line in lines if "failed in mid-stream" in line["message"]]
    assert failed["level"] == "warning" and failed["request_id"].startswith("request-")


def test_a_process_logs_json_from_its_first_line_on() -> None:
    command = [
        sys.executable,
        "-m",
        "services.lookup",
        "--telemetry",
        "{log_format: json, metrics_port: 0}",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("ready ")
        lines = [json.loads(process.stderr.readline()) for _ in range(2)]
        (address,) = [line["message"].split("//")[1].removesuffix("/metrics") for line in lines[:1]]
        assert 'flyserve_build_info{deployment="",replica="",role="sub_drafter"' in fetch(address)
        assert all(line["role"] == "sub_drafter" for line in lines)
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=240)
        assert all(json.loads(line) for line in rest.splitlines())
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
