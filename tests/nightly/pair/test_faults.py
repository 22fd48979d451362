"""With real weights: processes that die in mid-stream change no exact response and leave nothing behind."""

import re
import signal
import subprocess
import sys
import time
from urllib.request import urlopen

import grpc
import pytest

from demo.tasks import Task
from demo.tokenizer import render
from fly.types import Mode
from flyserve import Client, DraftLength, SpeculationParams
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from tests.support.processes import ROOT, Deployment, one_more_target, router_of

EXACT = SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=4))

ENDLESS_CLIENT = """
import sys
from flyserve import Client, SamplingParams
for chunk in Client(sys.argv[1]).stream(sys.argv[2], 900, sampling=SamplingParams(ignore_eos=True)):
    print(len(chunk.tokens), flush=True)
"""


def test_a_target_that_dies_in_mid_stream_changes_nothing(
    deployment: Deployment, problems: list[Task]
) -> None:
    prompts = (render(task.prompt) for task in problems)
    with (
        one_more_target() as victim,
        router_of([victim, deployment.targets[0]], deployment.drafter) as router,
        Client(router.address) as client,
    ):
        # Which of the two targets serves a prompt depends on their addresses.
        while num_prefilled(victim.address) == 0:
            prompt = next(prompts)
            expected = client.generate(prompt, speculation=EXACT)
        chunks = client.stream(prompt, speculation=EXACT)
        received = [next(chunks)]
        assert num_open(victim.address) == 1
        victim.kill()
        received.extend(chunks)
    assert [t.id for chunk in received for t in chunk.tokens] == [t.id for t in expected.tokens]
    assert "".join(chunk.text for chunk in received) == expected.text
    assert received[-1].statistics is not None
    assert received[-1].statistics.replays == 1


@pytest.mark.timeout(120)
def test_a_killed_client_frees_its_sequence_before_its_response_ends(
    deployment: Deployment, problems: list[Task]
) -> None:
    command = [sys.executable, "-c", ENDLESS_CLIENT, deployment.router.address, render(problems[0].prompt)]
    services = [*(target.address for target in deployment.targets), deployment.drafter.address]
    before = num_cancelled(deployment)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        client.stdout.readline()
        assert sum(num_open(address) for address in services) == 2
        client.send_signal(signal.SIGKILL)
        client.wait()
    while sum(num_open(address) for address in services):
        time.sleep(0.01)
    while num_cancelled(deployment) == before:
        time.sleep(0.01)


def num_cancelled(deployment: Deployment) -> float:
    """Return the number of requests whose clients left."""
    with urlopen(f"{deployment.router.urls[0]}/metrics", timeout=60) as response:
        found = re.findall(rb'flyserve_requests_total{[^}]*outcome="cancelled"[^}]*} (\S+)', response.read())
    return sum(map(float, found))


def num_open(address: str) -> int:
    """Return the open sequences of a target or drafter."""
    return load_of(address).sequences


def num_prefilled(address: str) -> int:
    """Return the tokens that a target has prefilled since its start."""
    return load_of(address).prefill_tokens


def load_of(address: str) -> common_pb2.Load:
    with grpc.insecure_channel(address) as channel:
        for stub in (TargetStub(channel), DrafterStub(channel)):
            try:
                return stub.Info(common_pb2.InfoRequest(), timeout=5).load
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
    raise AssertionError(f"{address} is neither a target nor a drafter")
