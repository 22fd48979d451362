"""With real weights in bfloat16: no response changes while every process but the router is killed in turn."""

import asyncio
from contextlib import ExitStack

import pytest

from tests.support.processes import DRAFTER_MODEL, TARGET_MODEL
from tests.support.streams import Streams
from tests.system.test_chaos import NUM_STREAMS, NUM_TOKENS, Deployment

KILLS = 30
ROOM = ("--dtype", "bfloat16", "--threads", "1", "--max-sequences", str(NUM_STREAMS))


class RealDeployment(Deployment):
    """The same services with the demo pair."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._commands, self._running = {}, {}
        target = ("services.target", "--model", str(TARGET_MODEL), *ROOM)
        targets = [self._add(f"target-{number}", *target) for number in range(2)]
        helper = self._add("sub-drafter", "services.lookup", "--engine", "suffix")
        drafting = ("--model", str(DRAFTER_MODEL), "--sub-drafter", helper, *ROOM)
        drafter = self._add("drafter", "services.drafter", *drafting)
        places = [flag for address in targets for flag in ("--target", address)]
        flags = (*places, "--drafter", drafter, "--grpc-port", "0")
        self.router = self._start("router", "--model", str(TARGET_MODEL), *flags)


@pytest.mark.timeout(7200)
async def test_no_response_changes_in_bfloat16_while_processes_are_killed() -> None:
    with ExitStack() as stack:
        deployment = RealDeployment(stack)
        prompts = [(40 + number, 41, 42) for number in range(NUM_STREAMS)]
        streams = Streams([deployment.router.address], prompts, NUM_TOKENS)
        await streams.record_undisturbed()
        async with streams.running():
            for _, victim in zip(range(KILLS), deployment.victims, strict=False):
                answered = streams.num_answered
                while streams.num_answered < answered + NUM_STREAMS // 4:
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(deployment.replace, victim)
    assert streams.num_replays > NUM_STREAMS // 2
    assert not streams.failures
    assert not streams.different
