"""Kill and restart one process after the other during many exact streams: no response changes."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from protos.flyserve.v1 import generation_pb2 as pb
from protos.flyserve.v1.generation_pb2_grpc import GenerationStub
from services.common.channel import open_channel
from tests.contract.fakes import VOCAB_SIZE, save_tokenizer
from tests.contract.router_rig import EXACT, ids, make_request
from tests.support.processes import ServiceProcess, service

pytestmark = pytest.mark.slow

NUM_STREAMS, NUM_TOKENS = 64, 100
KILL_EVERY_S, KILLS = 1.0, 4
TIMEOUT_S = 240
LANGUAGE = f"vocab_size: {VOCAB_SIZE}, response_tokens: [2000, 2000]"
TARGET = f"{{{LANGUAGE}, base_s: 0.15}}"
DRAFTER = f"{{{LANGUAGE}, base_s: 0.005, agreement: 0.85}}"
ROOM = ("--max-sequences", "64")


class Deployment:
    """Two targets, a drafter and a sub-drafter behind a router; all but the router are killed in turn."""

    def __init__(self, stack: ExitStack, tokenizer: Path) -> None:
        self._stack = stack
        self._commands: dict[str, tuple[str, ...]] = {}
        self._running: dict[str, ServiceProcess] = {}
        one = self._add("target-0", "services.target", "--simulated", TARGET, *ROOM)
        helper = self._add("sub-drafter", "services.sub_drafter", "--engine", "suffix")
        two = self._add("target-1", "services.target", "--simulated", TARGET, *ROOM)
        drafting = ("--simulated", DRAFTER, "--sub-drafter", helper, *ROOM)
        drafter = self._add("drafter", "services.drafter", *drafting)
        addresses = ("--target", one, "--target", two, "--drafter", drafter)
        self.router = self._start("router", "--model", str(tokenizer), *addresses, "--grpc-port", "0")

    @property
    def victims(self) -> Iterator[str]:
        """Yield the names in turn, endlessly."""
        return itertools.cycle(tuple(self._commands))

    def replace(self, name: str) -> None:
        """Kill a process and start another one at its address."""
        victim = self._running[name]
        victim.kill()
        self._running[name] = self._start(*self._commands[name], "--address", victim.address)

    def _add(self, name: str, *command: str) -> str:
        """Start a service; return its address."""
        self._commands[name], self._running[name] = command, self._start(*command)
        return self._running[name].address

    def _start(self, *command: str) -> ServiceProcess:
        return self._stack.enter_context(service(*command))


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(stack, save_tokenizer(tmp_path))


async def respond(deployment: Deployment) -> list[pb.GenerateResponse]:
    """Return all responses, requested concurrently."""
    async with open_channel(deployment.router.address) as channel:
        stub = GenerationStub(channel)
        prompts = [pb.TokenIds(ids=[40 + number, 41, 42]) for number in range(NUM_STREAMS)]
        requests = [make_request(EXACT, NUM_TOKENS, prompt_token_ids=prompt) for prompt in prompts]
        return list(await asyncio.gather(*(stub.Generate(request) for request in requests)))


async def test_no_response_changes_while_every_process_is_killed_in_turn(deployment: Deployment) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        expected = await respond(deployment)
        responding = asyncio.create_task(respond(deployment))
        for victim in itertools.islice(deployment.victims, KILLS):
            await asyncio.wait([responding], timeout=KILL_EVERY_S)
            assert not responding.done(), "the responses are too short to kill every process during them"
            await asyncio.to_thread(deployment.replace, victim)
        responses = await responding
    for response, undisturbed in zip(responses, expected, strict=True):
        assert ids(response.choices[0]) == ids(undisturbed.choices[0])
    assert sum(response.choices[0].statistics.replays for response in responses) > NUM_STREAMS // 2
