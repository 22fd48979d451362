"""Kill and restart one process after the other during many exact streams: no response changes."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.fakes import VOCAB_SIZE, save_tokenizer
from tests.support.processes import ServiceProcess, service
from tests.support.streams import Streams

NUM_STREAMS, NUM_TOKENS = 64, 60
KILLS = 4
TIMEOUT_S = 500
"""Ends a hang; nothing else depends on it."""
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
        helper = self._add("sub-drafter", "services.lookup", "--engine", "suffix")
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


async def test_no_response_changes_while_every_process_is_killed_in_turn(deployment: Deployment) -> None:
    """Kill until every process was killed and many sequences were replayed, however long that takes.

    Between two kills some responses end, so that the kills cannot keep all of them from ending.
    """
    prompts = [(40 + number, 41, 42) for number in range(NUM_STREAMS)]
    streams = Streams([deployment.router.address], prompts, NUM_TOKENS)
    async with asyncio.timeout(TIMEOUT_S):
        await streams.record_undisturbed()
        async with streams.running():
            for number, victim in enumerate(deployment.victims):
                answered = streams.num_answered
                while streams.num_answered < answered + NUM_STREAMS // 4:
                    await asyncio.sleep(0.05)
                if number >= KILLS and streams.num_replays > NUM_STREAMS // 2:
                    break
                await asyncio.to_thread(deployment.replace, victim)
    assert not streams.failures
    assert not streams.different
