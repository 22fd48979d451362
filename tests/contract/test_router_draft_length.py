"""A router with the draft length policy `goodput`, over real sockets, with simulated engines."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fly.clock import SystemClock
from fly.messages import Role
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1 import generation_pb2 as pb
from router.config import RouterConfig
from router.server import create_host
from router.speculation_config import SpeculationConfig
from services.drafter import servicer as drafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.config import ModelConfig
from services.engine.factory import build_engine
from services.engine.simulation.runner import SimulatedConfig
from services.target import servicer as target
from tests.contract.fakes import save_tokenizer
from tests.contract.router_rig import EXACT, FLY, PLAIN, Answer, Rig, ids
from tests.support.serving import connected, serving

CLOCK = SystemClock(4.0)
"""Slow, so that the costs of the models outweigh those of the machine."""
LANGUAGE = SimulatedConfig(
    vocab_size=512, context_length=512, agreement=1.0, response_tokens=(300, 400), uncertain_share=0.9
)
CHEAP = replace(LANGUAGE, agreement=0.9, base_s=0.0002, per_token_s=0.0, per_token_above_s=0.0)
EXPENSIVE = replace(LANGUAGE, agreement=0.3, base_s=0.004)
GOODPUT = {"draft_length": {"policy": "goodput", "max": 15}}
LENGTH = 60
MOST_TRIES = 20


@asynccontextmanager
async def deployed(folder: Path, drafts: SimulatedConfig) -> AsyncIterator[Rig]:
    """Start a target whose forward takes 2 ms, a drafter, and a router with the policy `goodput`."""
    async with AsyncExitStack() as stack:
        hosts = []
        for role, model in ((Role.TARGET, LANGUAGE), (Role.DRAFTER, drafts)):
            engine = build_engine(ModelConfig(role=role, simulated=model, max_sequences=16), CLOCK)
            await engine.start()
            if role is Role.TARGET:
                hosts.append(target.host_engine(engine))
                continue
            sub_drafters = SubDrafters(None)
            await sub_drafters.start()
            hosts.append(drafter.host_engine(engine, sub_drafters))
        addresses = [await stack.enter_async_context(serving(host)) for host in hosts]
        config = RouterConfig(
            model=save_tokenizer(folder),
            grpc_port=0,
            targets=(addresses[0],),
            drafters=(addresses[1],),
            speculation=SpeculationConfig.model_validate(GOODPUT),
            draft_patience=1e6,
        )
        yield Rig(await stack.enter_async_context(connected(await create_host(config, CLOCK))))


async def several(rig: Rig, mode: int, count: int, **fields: object) -> list[Answer]:
    return list(await asyncio.gather(*(rig.generate(mode, LENGTH, **fields) for _ in range(count))))


def mean_length(answers: list[Answer]) -> float:
    """Return draft tokens per round, including rounds without a draft."""
    rounds = sum(answer.statistics.rounds for answer in answers)
    return sum(answer.statistics.drafted for answer in answers) / rounds


@pytest.mark.parametrize("drafts", [CHEAP, EXPENSIVE], ids=["cheap", "expensive"])
async def test_exact_output_does_not_depend_on_the_policy(tmp_path: Path, drafts: SimulatedConfig) -> None:
    async with deployed(tmp_path, drafts) as rig:
        plain = await rig.generate(PLAIN, LENGTH)
        answers = await several(rig, EXACT, 6)
        fixed = await rig.generate(EXACT, LENGTH, speculation={"draft_length": {"max": 4}})
    assert [ids(answer) for answer in (*answers, fixed)] == [ids(plain)] * 7
    assert fixed.statistics.drafted / fixed.statistics.rounds > 3.5, "a request's own length is fixed"


async def settles(
    rig: Rig, is_settled: Callable[[list[Answer]], bool], mode: int = EXACT, count: int = 2
) -> bool:
    """Send responses until they are as wanted; a busy machine distorts the first costs."""
    for _ in range(MOST_TRIES):
        answers = await several(rig, mode, count)
        assert all(len(answer.tokens) == LENGTH for answer in answers)
        if is_settled(answers):
            return True
    return False


async def test_unprofitable_drafts_end(tmp_path: Path) -> None:
    async with deployed(tmp_path, EXPENSIVE) as expensive:
        assert await settles(expensive, lambda answers: mean_length(answers) < 1)
    async with deployed(tmp_path, CHEAP) as cheap:
        assert await settles(cheap, lambda answers: mean_length(answers) > 2)


async def test_windows_are_carried_at_any_draft_length(tmp_path: Path) -> None:
    async with deployed(tmp_path, CHEAP) as rig:
        assert await settles(rig, lambda answers: any(each.statistics.rescued for each in answers), FLY, 4)


async def test_a_request_may_select_either_policy_and_info_reports_the_default(tmp_path: Path) -> None:
    async with deployed(tmp_path, EXPENSIVE) as rig:
        info = await rig.stub.Info(common_pb2.InfoRequest())
        fixed = {"draft_length": pb.DraftLength(policy=pb.DRAFT_LENGTH_POLICY_FIXED)}
        long = await rig.generate(EXACT, 30, speculation=fixed)
        at_most = {"draft_length": pb.DraftLength(policy=pb.DRAFT_LENGTH_POLICY_GOODPUT, max=3)}
        short = await several(rig, EXACT, 2, speculation=at_most)
    default = info.default_speculation.draft_length
    assert (default.max, default.policy) == (15, pb.DRAFT_LENGTH_POLICY_GOODPUT)
    assert mean_length([long]) > 6 and mean_length(short) < 3
