"""With real weights in fp32: the drafter alone decodes exactly what its model decodes as a target."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fly.messages import Role
from protos.flyserve.v1 import generation_pb2 as pb
from router.config import RouterConfig
from router.server import create_host
from services.common.host import Host
from services.drafter.ahead import DraftingLimits
from services.drafter.servicer import host_engine as host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.config import Dtype, ModelConfig
from services.engine.factory import build_engine
from services.target.servicer import host_engine as host_target
from tests.contract.router_rig import PLAIN, Answer, Rig, ids
from tests.support.processes import DRAFTER_MODEL, TARGET_MODEL
from tests.support.serving import connected, serving

pytestmark = pytest.mark.slow

PROMPT = "Question: Tom has 12 apples and buys 7 more. How many apples does he have?\nAnswer:"
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.0, "seed": 6, "top_k": 20, "top_p": 0.9},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "min_tokens": 30, "logit_bias": {40: 2.0}},
]


async def host(role: Role, folder: Any) -> Host:
    engine = build_engine(ModelConfig(role=role, model=folder, dtype=Dtype.FLOAT32, max_sequences=8))
    await engine.start()
    if role is Role.TARGET:
        return host_target(engine)
    sub_drafters = SubDrafters(None)
    await sub_drafters.start()
    limits = DraftingLimits(max_draft=16, ahead_sequences=1, branches=3)
    return host_drafter(engine, sub_drafters, limits, standalone_sequences=2)


@asynccontextmanager
async def deployment(target: Any, drafter: Any = None) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(serving(await host(Role.TARGET, target)))]
        drafters = []
        if drafter is not None:
            drafters = [await stack.enter_async_context(serving(await host(Role.DRAFTER, drafter)))]
        config = RouterConfig(model=TARGET_MODEL, grpc_port=0, targets=targets, drafters=drafters)
        yield Rig(await stack.enter_async_context(connected(await create_host(config))))


async def answers(rig: Rig, mode: int) -> list[Answer]:
    prompt = {"prompt_token_ids": None, "prompt": PROMPT}
    return [await rig.generate(mode, 100, sampling=each, **prompt) for each in SAMPLING]


async def test_it_equals_plain_decoding_of_the_same_folder() -> None:
    async with deployment(DRAFTER_MODEL) as rig:
        expected = await answers(rig, PLAIN)
    async with deployment(TARGET_MODEL, DRAFTER_MODEL) as rig:
        found = await answers(rig, pb.MODE_DRAFT)
        plain = await answers(rig, PLAIN)
    assert [ids(answer) for answer in found] == [ids(answer) for answer in expected]
    assert [answer.text for answer in found] == [answer.text for answer in expected]
    assert [ids(answer) for answer in found] != [ids(answer) for answer in plain]
    assert found[1].statistics.cached_tokens >= 16, "the prompt is in the prefix cache"
    assert sum(answer.statistics.drafted_ahead for answer in found) > 0
