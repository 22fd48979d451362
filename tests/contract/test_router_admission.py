"""Admission control from the client's side: fairness, and rejections with a retry delay."""

import asyncio
from pathlib import Path

import grpc
import pytest

from protos.wire.status import from_rpc_error
from tests.contract.fakes import FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import PLAIN, Rig, make_request, running

FORWARD_S, TOKENS = 0.05, 8


def paced() -> FakeTarget:
    async def script(step: int) -> None:
        await asyncio.sleep(FORWARD_S)

    target = FakeTarget(HashModel())
    target.script = script
    return target


async def ask(rig: Rig, order: list[str], name: str, salt: str) -> None:
    await rig.stub.Generate(make_request(PLAIN, TOKENS, cache_salt=salt, request_id=name))
    order.append(name)


async def test_who_floods_the_router_delays_others_by_one_turn(tmp_path: Path) -> None:
    target, order = paced(), list[str]()
    async with running(save_tokenizer(tmp_path), [target], max_concurrent=1) as rig:
        flood = [asyncio.create_task(ask(rig, order, f"flood-{number}", "a")) for number in range(4)]
        await target.stepped.wait()
        await ask(rig, order, "quiet", "b")
        await asyncio.gather(*flood)
    assert order.index("quiet") == 1


async def test_what_cannot_be_done_in_time_is_rejected_before_anything_is_done(tmp_path: Path) -> None:
    target = paced()
    async with running(save_tokenizer(tmp_path), [target], max_concurrent=1) as rig:
        await rig.generate(PLAIN, TOKENS)
        target.stepped.clear()
        calls = [asyncio.create_task(rig.generate(PLAIN, TOKENS)) for _ in range(3)]
        await target.stepped.wait()
        num_opened = target.num_opened
        with pytest.raises(grpc.aio.AioRpcError) as rejected:
            await rig.stub.Generate(make_request(PLAIN, TOKENS), timeout=2 * FORWARD_S * TOKENS)
        assert rejected.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert target.num_opened == num_opened
        retry_after_s = getattr(from_rpc_error(rejected.value), "retry_after_s", 0.0)
        assert retry_after_s > 2 * FORWARD_S * TOKENS
        await asyncio.gather(*calls)
