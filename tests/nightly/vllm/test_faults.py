"""vLLM processes that are killed: no response fails or changes, and no process is left."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from demo.tasks import Task
from demo.tokenizer import render
from flyserve import Client, SpeculationParams
from flyserve.core.types import Mode
from tests.nightly.vllm.vllm_rig import vllm_deployment, vllm_python, vllm_service
from tests.support.processes import ROOT, TARGET_MODEL, ServiceProcess, router_of

EXACT = SpeculationParams(mode=Mode.EXACT)
STREAMS, MAX_NEW_TOKENS, GONE_WITHIN_S = 8, 96, 240
SHARED = ("--shards", "2")


@pytest.fixture(scope="module")
def deployment() -> Iterator[tuple[ServiceProcess, list[ServiceProcess]]]:
    with vllm_deployment(num_targets=2) as deployment:
        yield deployment


def descendants(service: ServiceProcess) -> list[psutil.Process]:
    return psutil.Process(service.process.pid).children(recursive=True)


def assert_gone(processes: list[psutil.Process]) -> None:
    assert not psutil.wait_procs(processes, timeout=GONE_WITHIN_S)[1]


def streams(address: str, problems: list[Task], disturb: Callable[[], None]) -> list[list[int]]:
    """Return the tokens of concurrent streams; call `disturb` when the first has a few tokens."""
    with Client(address) as client, ThreadPoolExecutor(STREAMS) as pool:

        def respond(number: int) -> list[int]:
            tokens: list[int] = []
            prompt, is_first = render(problems[number].prompt), number == 0
            with client.stream(prompt, MAX_NEW_TOKENS, speculation=EXACT) as stream:
                for chunk in stream:
                    tokens += [token.id for token in chunk.tokens]
                    if is_first and len(tokens) > 2:
                        is_first = False
                        disturb()
            return tokens

        return list(pool.map(respond, range(STREAMS)))


@pytest.mark.parametrize("victim", ["service", "worker"])
def test_a_target_that_is_killed_changes_no_response(
    deployment: tuple[ServiceProcess, list[ServiceProcess]], problems: list[Task], victim: str
) -> None:
    router, (first, _) = deployment
    expected = streams(router.address, problems, lambda: None)
    with vllm_service("target", TARGET_MODEL, *SHARED) as doomed, router_of([first, doomed]) as pair:
        started = descendants(doomed)
        assert started
        processes = [*started, psutil.Process(doomed.process.pid)]
        killed = processes[-1] if victim == "service" else worker_of(doomed)
        found = streams(pair.address, problems, killed.kill)
        assert found == expected
        assert doomed.process.wait(GONE_WITHIN_S) != 0
        assert_gone(started)


def worker_of(service: ServiceProcess) -> psutil.Process:
    """Return a process of vLLM: a child that holds a part of the model."""
    children = psutil.Process(service.process.pid).children()
    return max(children, key=lambda child: int(child.memory_info().rss))


def test_a_worker_that_hangs_ends_its_service() -> None:
    with (
        vllm_service("target", TARGET_MODEL, *SHARED, "--group-timeout-s", "4") as doomed,
        router_of([doomed]) as router,
    ):
        started = descendants(doomed)
        worker_of(doomed).suspend()
        with Client(router.address) as client, ThreadPoolExecutor(1) as pool:
            request = pool.submit(client.generate, "1", 4, speculation=EXACT)
            assert doomed.process.wait(GONE_WITHIN_S) == 1
            assert_gone(started)
            assert request.exception() is not None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--engine-args", "{max_model_length: 5}"],
            "engine_args.max_model_length: vLLM has no such argument",
        ),
        (["--engine-args", "{max_model_len: 100000}"], "vLLM rejects"),
        (["--engine-args", "{quantization: no_such}"], "vLLM rejects"),
        (["--device", "cuda"], "device is cuda, but this vLLM is built for cpu"),
    ],
)
def test_a_fault_of_the_configuration_is_one_line(flags: list[str], message: str) -> None:
    assert message in refusal(vllm_python(), TARGET_MODEL, flags)


def test_a_model_that_vllm_refuses_is_one_line(tmp_path: Path) -> None:
    config = json.loads((TARGET_MODEL / "config.json").read_text(encoding="utf-8"))
    for file in TARGET_MODEL.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"architectures": ["Unheard"]}), encoding="utf-8"
    )
    assert f"vLLM rejects {tmp_path}" in refusal(vllm_python(), tmp_path, [])


def test_without_vllm_the_remedy_is_named() -> None:
    assert "install flyserve[vllm]" in refusal(sys.executable, TARGET_MODEL, [])


def refusal(python: str, model: Path, flags: list[str]) -> str:
    """Return the last line of a target that does not start."""
    command = [python, "-m", "services.target", "--engine", "vllm", "--model", str(model), *flags]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 2, ended.stderr
    return ended.stderr.splitlines()[-1]
