"""`--single-process`: a whole deployment in one process, without Ray."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from openai import OpenAI
from transformers import LlamaForCausalLM

from demo.tasks import Task
from flyserve import Client, SpeculationParams
from flyserve.core.response import Statistics
from flyserve.core.types import Mode
from tests.support.comparison import PlainResponses, responses
from tests.support.leftovers import MarkedCommand
from tests.support.processes import DRAFTER_MODEL, ROOT, TARGET_MODEL

NUM_PROBLEMS = 6


@dataclass(frozen=True)
class Single:
    """A running `flyserve ... --single-process`."""

    command: MarkedCommand
    process: subprocess.Popen[str]
    address: str
    log: Path

    @property
    def messages(self) -> list[str]:
        """Lines of stderr until now."""
        return self.log.read_text("utf-8").splitlines()

    def assert_stopped(self) -> None:
        """Wait until it has ended by itself, in order and without a trace."""
        assert self.process.wait(timeout=600) == 0
        assert "stopping" in self.messages
        assert self.messages[-1] == "stopped"
        assert self.command.leftovers() == []


@contextmanager
def single_process(folder: Path, *arguments: str) -> Iterator[Single]:
    command, log = MarkedCommand(), folder / "log"
    with log.open("w") as messages:
        process = subprocess.Popen(
            [sys.executable, "-m", "flyserve", *arguments, "--single-process"],
            cwd=ROOT,
            env={**command.environment, "OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=messages,
        )
        try:
            assert process.stdout is not None
            ready = next((line for line in process.stdout if line.startswith("ready ")), None)
            assert ready is not None, log.read_text("utf-8")
            yield Single(command, process, ready.split()[1], log)
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment file: the demo pair in fp32, with free ports."""
    tier = {"dtype": "float32", "threads": 1, "kv_tokens": 65_536}
    content = {
        "target": {"model": str(TARGET_MODEL), **tier},
        "drafter": {"model": str(DRAFTER_MODEL), **tier},
        "sub_drafter": {"engine": "suffix"},
        "router": {"grpc_port": 0, "http_port": 0},
    }
    path = tmp_path_factory.mktemp("single") / "deployment.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def deployed(file: Path) -> Iterator[Single]:
    with single_process(file.parent, "up", str(file)) as running:
        yield running


def test_speculation_in_one_process_emits_the_tokens_of_plain_decoding(
    deployed: Single, problems: list[Task], target: LlamaForCausalLM
) -> None:
    plain = PlainResponses(deployed.address, problems[:NUM_PROBLEMS], target)
    plain.assert_equals(responses(deployed.address, plain.problems, SpeculationParams(mode=Mode.EXACT)))


def test_drafter_and_sub_drafter_help_within_the_process(deployed: Single, problems: list[Task]) -> None:
    """The sub-drafter remembers the response, for which one request in four looks, whatever that costs."""
    with Client(deployed.address) as client:

        def repeated() -> Statistics:
            fly = SpeculationParams(mode=Mode.FLY)
            return client.generate(f"{problems[0].prompt}\n", speculation=fly).statistics

        assert repeated().tau > 2
        assert any(repeated().sub_drafter_tokens for _ in range(40))


def test_one_process_without_ray_listens_at_the_ports_of_the_router_alone(deployed: Single) -> None:
    process = psutil.Process(deployed.process.pid)
    (helper,) = process.children(recursive=True)
    assert "services.common.grammars.process" in helper.cmdline()
    listening = [each.laddr.port for each in process.net_connections() if each.status == psutil.CONN_LISTEN]
    assert len(listening) == 2
    assert int(deployed.address.rpartition(":")[2]) in listening
    assert not [each.path for each in process.memory_maps() if "_raylet" in each.path]


def test_serve_in_one_process_has_the_openai_api_until_ctrl_c(tmp_path: Path) -> None:
    ports = ("--port", "0", "--grpc-port", "0")
    with single_process(tmp_path, "serve", str(TARGET_MODEL), "--draft", "suffix", *ports) as running:
        (url,) = (line.split()[-1] for line in running.messages if line.startswith("OpenAI API"))
        with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
            (model,) = (model.id for model in client.models.list() if not model.id.endswith("-draft"))
            parts = client.completions.create(
                model=model,
                prompt="1 + 1 =",
                max_tokens=64,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            first = next(parts)
            running.process.send_signal(signal.SIGINT)
            *_, last = parts
        running.assert_stopped()
    assert first.choices[0].text and last.usage is not None and last.usage.completion_tokens == 64
