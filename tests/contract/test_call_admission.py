"""Calls over gRPC: their key and quotas count before their request is received, and limits of that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.v1 import generation_pb2 as pb
from router import server
from router.security.keys import issue_key
from services.common import handlers
from tests.contract.fakes import FakeTarget, HashModel, save_tokenizer
from tests.contract.http_rig import serving_http
from tests.contract.router_rig import Rig, running
from tests.contract.test_router_keys import METHODS
from tests.contract.wire_rig import LIMIT_S, connected_to, request, sent

TOKENIZE = "/flyserve.v1.Generation/Tokenize"


@asynccontextmanager
async def locked(folder: Path) -> AsyncIterator[tuple[Rig, tuple[tuple[str, str], ...]]]:
    """Serve with one key, of one request at a time; yield the metadata that has it."""
    token = issue_key(folder / "keys.yaml", "alice", {"max_concurrent": 1})
    security = {"auth_tokens_file": str(folder / "keys.yaml")}
    async with running(save_tokenizer(folder), [FakeTarget(HashModel())], security=security) as rig:
        yield rig, (("authorization", f"Bearer {token}"),)


def begun(rig: Rig, path: str, metadata: Any = ()) -> Any:
    """Begin a call whose request does not come."""
    return rig.channel.stream_stream(path)(metadata=metadata, timeout=LIMIT_S)


async def test_a_call_is_rejected_before_its_request_is_received(tmp_path: Path) -> None:
    async with locked(tmp_path) as (rig, key), asyncio.timeout(LIMIT_S):
        paths = [f"/{method.containing_service.full_name}/{method.name}" for method in METHODS]
        for path in paths:
            assert await begun(rig, path).code() is grpc.StatusCode.UNAUTHENTICATED, path
        codes = [asyncio.ensure_future(begun(rig, TOKENIZE, key).code()) for _ in range(2)]
        (rejected,), (held,) = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
        assert rejected.result() is grpc.StatusCode.RESOURCE_EXHAUSTED
        held.cancel()


async def test_a_request_that_does_not_come_ends_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with locked(tmp_path) as (rig, key), asyncio.timeout(LIMIT_S):
        for path in (TOKENIZE, "/grpc.health.v1.Health/Check"):
            ended = begun(rig, path, key)
            await ended.done_writing()
            assert await ended.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert await ended.details() == "request is missing"
        monkeypatch.setattr(handlers, "_REQUEST_S", 0.1)
        assert await begun(rig, TOKENIZE, key).details() == "request did not arrive within 0.1 s"


async def test_without_keys_an_address_leaves_bytes_to_others(tmp_path: Path) -> None:
    config = {"http": {"max_body_bytes": 4 << 20}, "max_body_bytes_in_all": 8 << 20}
    type_, length = "Content-Type: application/json", f"Content-Length: {4 << 20}"
    announced = request("POST /tokenize HTTP/1.1", type_, "Expect: 100-continue", length)
    async with serving_http(tmp_path, **config) as rig, asyncio.timeout(LIMIT_S):
        async with connected_to(rig.url) as (reader, writer):
            writer.write(announced)
            await reader.readuntil(b"100 Continue")
            assert b"the bodies of one address may have half" in await sent(rig.url, announced)
            with pytest.raises(grpc.aio.AioRpcError, match="the bodies of one address may have half"):
                await rig.rig.channel.unary_unary(TOKENIZE)(bytes(1 << 20))
            writer.write(b" " * (4 << 20))
            assert b" 400 " in await reader.readuntil(b"}}")
        assert (await rig.post("/tokenize", b" " * (4 << 20))).status_code == 400


async def test_a_compressed_request_counts_by_its_length(tmp_path: Path) -> None:
    async with locked(tmp_path) as (rig, key):
        call = rig.channel.unary_unary(TOKENIZE)
        for length, code in ((8 << 20, "RESOURCE_EXHAUSTED"), (1 << 20, "INVALID_ARGUMENT")):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(bytes(length), metadata=key, compression=grpc.Compression.Gzip, timeout=LIMIT_S)
            assert error.value.code().name == code


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


async def test_connections_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 2)
    async with locked(tmp_path) as (rig, key), asyncio.timeout(LIMIT_S):
        tokenized = partial(
            rig.stub.Tokenize, pb.TokenizeRequest(text="x"), metadata=key, wait_for_ready=True
        )
        async with AsyncExitStack() as stack:
            for _ in range(2):
                reader, writer = await stack.enter_async_context(connected_to(rig.addresses[0]))
                writer.write(PREFACE)
                assert await reader.read(1)
            assert await sent(rig.addresses[0], PREFACE) == b""
        assert (await tokenized()).tokens, "the others have ended"


async def test_a_connection_has_a_maximum_of_calls(tmp_path: Path) -> None:
    async with locked(tmp_path) as (rig, _), asyncio.timeout(LIMIT_S):
        host, _, port = rig.addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE)
        length = int.from_bytes(await reader.readexactly(3), "big")
        settings = (await reader.readexactly(6 + length))[6:]
        found = {settings[at : at + 2]: settings[at + 2 : at + 6] for at in range(0, length, 6)}
        assert int.from_bytes(found[b"\0\3"], "big") == 2048
        writer.close()
