"""With real weights: processes that die in mid-stream change no exact response and leave nothing behind."""

import signal
import subprocess
import sys
import time

import grpc
import pytest

from demo.tasks import Task
from demo.tokenizer import render
from fly.types import Mode
from flyserve import Client, DraftLength, SpeculationParams
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from tests.support.processes import ROOT, Deployment, demo_deployment

pytestmark = pytest.mark.slow

EXACT = SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=4))

ENDLESS_CLIENT = """
import sys
from flyserve import Client, SamplingParams
for chunk in Client(sys.argv[1]).stream(sys.argv[2], 900, sampling=SamplingParams(ignore_eos=True)):
    print(len(chunk.tokens), flush=True)
"""


def test_a_target_that_dies_in_mid_stream_changes_nothing(problems: list[Task]) -> None:
    prompt = render(problems[0].prompt)
    with demo_deployment(num_targets=2) as deployment, Client(deployment.router.address) as client:
        expected = client.generate(prompt, speculation=EXACT)
        chunks = client.stream(prompt, speculation=EXACT)
        received = [next(chunks)]
        victim = next(target for target in deployment.targets if num_open(target.address) == 1)
        victim.kill()
        received.extend(chunks)
    assert [t.id for chunk in received for t in chunk.tokens] == [t.id for t in expected.tokens]
    assert "".join(chunk.text for chunk in received) == expected.text
    assert received[-1].statistics is not None
    assert received[-1].statistics.replays == 1


def test_a_killed_client_frees_its_sequence_within_a_second(
    deployment: Deployment, problems: list[Task]
) -> None:
    command = [sys.executable, "-c", ENDLESS_CLIENT, deployment.router.address, render(problems[0].prompt)]
    services = [*(target.address for target in deployment.targets), deployment.drafter.address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        client.stdout.readline()
        assert sum(num_open(address) for address in services) == 2
        client.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        client.wait()
    while sum(num_open(address) for address in services):
        assert time.monotonic() - killed < 1.0


def num_open(address: str) -> int:
    """Return the open sequences of a target or drafter."""
    with grpc.insecure_channel(address) as channel:
        for stub in (TargetStub(channel), DrafterStub(channel)):
            try:
                return stub.Info(common_pb2.InfoRequest(), timeout=5).load.sequences
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
    raise AssertionError(f"{address} is neither a target nor a drafter")
