"""With real weights in fp32: the drafter alone decodes exactly what its model decodes as a target."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from typing import Any

from demo.tasks import load_tasks
from demo.tokenizer import render
from flyserve.core.clock import SystemClock
from flyserve.core.messages import Role
from flyserve.core.request import SamplingParams
from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from flyserve.v1.drafter_pb2_grpc import DrafterStub
from flyserve.wire.streams import info_from_wire
from router.config import RouterConfig
from router.server import create_host
from services.common.channel import open_channel
from services.common.endpoint_sources import ListedEndpointSource
from services.common.host import Host
from services.drafter.ahead import DraftingLimits
from services.drafter.servicer import host_engine as host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.config import Dtype, ModelConfig
from services.engine.factory import build_engine
from services.lookup.config import SuffixConfig
from services.lookup.servicer import create_host as create_sub_drafter
from services.target.servicer import host_engine as host_target
from tests.contract.router_rig import EXACT, PLAIN, Rig, ids
from tests.support.processes import DRAFTER_MODEL, TARGET_MODEL
from tests.support.serving import connected, serving

PROMPT = render(load_tasks(3)[2].prompt)
NUM_TOKENS = 120
LATE = 20
"""Position of a token of the model's own response that a request changes: a copy of it would go on."""


async def host(role: Role, folder: Any, sub_drafter: str = "") -> Host:
    engine = build_engine(ModelConfig(role=role, model=folder, dtype=Dtype.FLOAT32, max_sequences=8))
    await engine.start()
    if role is Role.TARGET:
        return host_target(engine)
    sub_drafters = SubDrafters(ListedEndpointSource({Role.SUB_DRAFTER: [sub_drafter]}, SystemClock()))
    await sub_drafters.start()
    limits = DraftingLimits(max_draft=16, ahead_sequences=1)
    return host_drafter(engine, sub_drafters, limits, standalone_sequences=2)


@asynccontextmanager
async def deployment(target: Any, drafter: Any = None, sub_drafter: str = "") -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(serving(await host(Role.TARGET, target)))]
        drafters = []
        if drafter is not None:
            drafting = await host(Role.DRAFTER, drafter, sub_drafter)
            drafters = [await stack.enter_async_context(serving(drafting))]
        config = RouterConfig(model=TARGET_MODEL, grpc_port=0, targets=targets, drafters=drafters)
        yield Rig(await stack.enter_async_context(connected(await create_host(config))))


async def choices(rig: Rig, mode: int, request: dict[str, Any]) -> list[tuple[list[int], str]]:
    prompt = {"prompt_token_ids": None, "prompt": PROMPT}
    found, _ = await rig.choices(mode, NUM_TOKENS, **prompt, **request)
    return [(ids(choice), choice.text) for choice in found]


def requests(own: list[int], text: str) -> dict[str, list[dict[str, Any]]]:
    """Return requests for each sampling parameter, some of which change the model's own response."""
    late = next(token for index, token in enumerate(own) if index >= LATE and token not in own[:index])
    hot: dict[str, Any] = {"temperature": 0.9, "seed": 5}
    sampling: dict[str, list[dict[str, Any]]] = {
        "temperature": [{}, hot, {"temperature": 1.5, "seed": 2**64 - 1}],
        "top_k": [{**hot, "top_k": 4}],
        "top_p": [{**hot, "top_p": 0.7}],
        "min_p": [{**hot, "min_p": 0.2}],
        "repetition_penalty": [{"repetition_penalty": 1.4}],
        "presence_penalty": [{"presence_penalty": 1.5}],
        "frequency_penalty": [{"frequency_penalty": 0.7}, {**hot, "frequency_penalty": 0.7}],
        "logit_bias": [{"logit_bias": {late: -100.0}}, {"logit_bias": {late: 3.0}}],
        "min_tokens": [{"min_tokens": NUM_TOKENS - 5, "stop_token_ids": [late]}],
        "ignore_eos": [{"ignore_eos": True}],
        "stop_token_ids": [{"stop_token_ids": [late]}],
        "seed": [{**hot, "seed": 6}],
        "coupling": [{**hot, "coupling": common_pb2.COUPLING_REJECTION}],
    }
    assert sampling.keys() == {field.name for field in fields(SamplingParams)}, "each parameter is tried"
    pattern = re.escape(text[: len(text) // 2]).replace("\\ ", " ").replace("\\\n", "\n") + "[0-9]{4,8}"
    grammar = common_pb2.Grammar(kind=common_pb2.GRAMMAR_KIND_REGEX, text=pattern)
    return {
        **{name: [{"sampling": each} for each in tried] for name, tried in sampling.items()},
        "grammar": [{"grammar": grammar}, {"grammar": grammar, "sampling": hot}],
        "n": [{"n": 3, "sampling": hot}, {"n": 2, "sampling": {"presence_penalty": 1.5}}],
        "stop": [{"stop": [text[len(text) // 2 :][:4]]}],
    }


def without_coupling(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request as plain decoding serves it: mode draft always draws with the shared noise."""
    kept = {name: value for name, value in request.get("sampling", {}).items() if name != "coupling"}
    return {**request, "sampling": kept}


async def caches_a_response(address: str) -> None:
    """Return when a sub-drafter has a response in its cache."""
    async with open_channel(address) as channel, asyncio.timeout(600):
        while not info_from_wire(await DrafterStub(channel).Info(common_pb2.InfoRequest()))[1].kv_cached:
            await asyncio.sleep(0.01)


async def test_it_equals_plain_decoding_of_its_model_for_every_parameter() -> None:
    async with deployment(DRAFTER_MODEL) as rig:
        ((own, text),) = await choices(rig, PLAIN, {})
        tried = [(name, each) for name, all_of in requests(own, text).items() for each in all_of]
        expected = [await choices(rig, PLAIN, without_coupling(request)) for _, request in tried]
    changed = {name for (name, _), found in zip(tried, expected, strict=True) if found != [(own, text)]}
    assert {"logit_bias", "min_tokens", "presence_penalty", "grammar", "stop_token_ids"} <= changed
    async with (
        serving(await create_sub_drafter(SuffixConfig())) as sub_drafter,
        deployment(TARGET_MODEL, DRAFTER_MODEL, sub_drafter) as rig,
    ):
        for mode in (pb.MODE_DRAFT, EXACT, pb.MODE_DRAFT):
            await choices(rig, mode, {})
            await caches_a_response(sub_drafter)
        for (name, request), right in zip(tried, expected, strict=True):
            assert await choices(rig, pb.MODE_DRAFT, request) == right, (name, request)
        answer = await rig.generate(pb.MODE_DRAFT, NUM_TOKENS, prompt_token_ids=None, prompt=PROMPT)
    assert answer.statistics.cached_tokens >= 16, "the prompt is in the prefix cache"
    assert answer.statistics.drafted_ahead > 0
