"""API keys at a running router: over gRPC and HTTP, with limits, isolated, and never logged."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from flyserve import AsyncClient
from flyserve.v1 import generation_pb2 as pb
from flyserve.wire.status import from_rpc_error
from router.security.keys import issue_key
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.logs import formatter
from tests.contract.fakes import held
from tests.contract.http_rig import MODEL, HttpRig, error_of, serving_http
from tests.contract.router_rig import PLAIN, make_request
from tests.contract.wire_rig import LIMIT_S, connected_to, request

METHODS = tuple(pb.DESCRIPTOR.services_by_name["Generation"].methods)


class Locked:
    """A router that requires API keys, and two keys."""

    def __init__(self, rig: HttpRig, file: Path, tokens: dict[str, str]) -> None:
        self.rig = rig
        self.file = file
        self.tokens = tokens

    @property
    def address(self) -> str:
        return self.rig.rig.addresses[0]

    def metadata(self, name: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.tokens[name]}"),)

    def headers(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[name]}"}


@asynccontextmanager
async def locked(
    folder: Path, limits: Mapping[str, int] = MappingProxyType({"max_concurrent": 1}), **config: Any
) -> AsyncIterator[Locked]:
    file = folder / "keys.yaml"
    tokens = {name: issue_key(file, name, dict(limits)) for name in ("alice", "bob")}
    async with serving_http(folder, security={"auth_tokens_file": str(file)}, **config) as rig:
        yield Locked(rig, file, tokens)


async def code_of(
    method: MethodDescriptor, channel: grpc.aio.Channel, metadata: Any, request: bytes = b""
) -> grpc.StatusCode:
    """Return the status of a request, by default an empty one."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.server_streaming:
            async for _ in channel.unary_stream(path)(request, metadata=metadata, timeout=240):
                pass
        else:
            await channel.unary_unary(path)(request, metadata=metadata, timeout=240)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_every_method_asks_for_a_key(tmp_path: Path) -> None:
    async with locked(tmp_path) as router:
        channel, token = router.rig.rig.channel, router.tokens["alice"]
        twice = (*router.metadata("alice"), *router.metadata("alice"))
        for method in METHODS:
            for said in ((), (("authorization", token),), (("authorization", "Bearer wrong"),), twice):
                found = await code_of(method, channel, said)
                assert found is grpc.StatusCode.UNAUTHENTICATED, method.name
            let_in = await code_of(method, channel, router.metadata("alice"))
            assert let_in in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT), method.name


async def test_reflection_asks_for_a_key_and_health_does_not(tmp_path: Path) -> None:
    async with locked(tmp_path) as router:
        channel = router.rig.rig.channel
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await health(b"", timeout=240) == b"\x08\x01"
        path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        for metadata, code in (
            ((), grpc.StatusCode.UNAUTHENTICATED),
            (router.metadata("bob"), grpc.StatusCode.OK),
        ):
            call = channel.stream_stream(path)(timeout=240, metadata=metadata)
            await call.done_writing()
            assert await call.code() is code


async def test_the_package_and_openai_clients_bring_keys(tmp_path: Path) -> None:
    async with locked(tmp_path) as router:
        async with AsyncClient(router.address, token=router.tokens["alice"]) as client:
            assert (await client.generate("the fox", max_new_tokens=4)).text
        openai = router.rig.openai.with_options(api_key=router.tokens["bob"])
        answer = await openai.completions.create(model=MODEL, prompt="the fox", max_tokens=4)
        assert answer.choices[0].text


OPEN = ("/", "/health", "/version", "/openapi.json", "/playground/main.js")
CLOSED = (
    "/metrics",
    "/playground/settings.json",
    "/playground/settings%2Ejson",
    "/playground/settings.json%0A",
    "/playground/settings.json%0D%0A",
    "/playground/main.js%0A",
    "/playground//settings.json",
    "/playground/./settings.json",
    "/playground/../v1/models",
    "/playground/..%2Fv1/models",
    "/playground/../../routes.py",
    "/playground/nowhere.js",
    "/metrics%0A",
    "/v1/models%0A",
    "/v1/models",
    "/v1/models/fake",
    "/v1/completions",
    "//v1/models",
    "/./v1/models",
    "/nowhere",
)


async def test_paths_that_tell_something_of_the_deployment_ask_for_a_key(tmp_path: Path) -> None:
    async with locked(tmp_path) as router:
        for path in OPEN:
            assert (await raw_get(router.rig.url, path)).startswith(b"HTTP/1.1 200 ")
        for path in CLOSED:
            rejected = await raw_get(router.rig.url, path)
            assert rejected.startswith(b"HTTP/1.1 401 ") and b"www-authenticate: bearer" in rejected.lower()


async def raw_get(url: str, path: str) -> bytes:
    """Return the head of the response to a path that no client library has normalized."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    try:
        return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 240)
    finally:
        writer.close()


async def test_a_wrong_key_is_an_error_object_as_openai_has_it(tmp_path: Path) -> None:
    async with locked(tmp_path) as router:
        response = await router.rig.post("/v1/completions", {}, authorization="Bearer wrong-secret")
        error = error_of(response)
        assert response.status_code == 401 and error["code"] == "invalid_api_key"
        assert "wrong-secret" not in response.text


async def test_keys_share_no_cache_and_have_limits_of_their_own(tmp_path: Path) -> None:
    async with locked(tmp_path) as router:
        target, stub = router.rig.target, router.rig.rig.stub
        hold = held(target)
        request = make_request(PLAIN, 4, cache_salt="same")
        first = asyncio.ensure_future(stub.Generate(request, metadata=router.metadata("alice"), timeout=240))
        async with asyncio.timeout(240):
            await target.stepped.wait()
        with pytest.raises(grpc.aio.AioRpcError) as rejected:
            await stub.Generate(request, metadata=router.metadata("alice"), timeout=240)
        assert rejected.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert from_rpc_error(rejected.value).retry_after_s > 0  # type: ignore[attr-defined]
        second = asyncio.ensure_future(stub.Generate(request, metadata=router.metadata("bob"), timeout=240))
        hold.set()
        assert (await first).choices and (await second).choices
        over_http = {"model": MODEL, "prompt": "fox", "max_tokens": 2, "cache_salt": "same"}
        response = await router.rig.http.post(
            "/v1/completions", json=over_http, headers=router.headers("bob")
        )
        assert response.status_code == 200
        of_alice, of_bob, of_bob_by_http = (opening.cache_salt for opening in target.openings)
        assert of_alice != of_bob == of_bob_by_http and "same" not in (of_alice, of_bob)


WORK = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize", "/nowhere")


async def test_quotas_count_before_a_body_is_read_on_every_path_of_both_apis(tmp_path: Path) -> None:
    async with locked(tmp_path, {"requests_per_minute": 2}) as router:
        key, channel = f"Authorization: Bearer {router.tokens['alice']}", router.rig.rig.channel
        body = {"model": MODEL, "prompt": "fox", "max_tokens": 2}
        for _ in range(2):
            response = await router.rig.post("/v1/completions", body, **router.headers("alice"))
            assert response.status_code == 200, "each counts once"
        for path in WORK:
            # The body never comes.
            async with connected_to(router.rig.url) as (reader, writer):
                writer.write(request(f"POST {path} HTTP/1.1", key, "Content-Length: 9"))
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
                assert b" 429 " in head and b"retry-after: " in head.lower(), path
        for method in METHODS:
            code = await code_of(method, channel, router.metadata("alice"), request=b"not a message")
            if method.name == "Info":
                assert code is grpc.StatusCode.INVALID_ARGUMENT
            else:
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await router.rig.http.get("/v1/models", headers=router.headers("alice"))).status_code == 200
        assert (await router.rig.post("/v1/completions", body, **router.headers("bob"))).status_code == 200
        metrics = (await router.rig.http.get("/metrics", headers=router.headers("bob"))).text
        (line,) = [line for line in metrics.splitlines() if "overloaded" in line and "requests_total" in line]
        assert line.endswith(f" {len(WORK) + len(METHODS) - 1}.0")


async def test_a_body_that_is_on_its_way_counts_as_a_request(tmp_path: Path) -> None:
    async with locked(tmp_path) as router, asyncio.timeout(LIMIT_S):
        key, stub = f"Authorization: Bearer {router.tokens['alice']}", router.rig.rig.stub
        tokenized = partial(stub.Tokenize, pb.TokenizeRequest(text="x"), metadata=router.metadata("alice"))
        async with connected_to(router.rig.url) as (reader, writer):
            writer.write(request("POST /tokenize HTTP/1.1", key, EXPECTING, JSON, "Content-Length: 9"))
            await reader.readuntil(b"100 Continue")
            with pytest.raises(grpc.aio.AioRpcError) as rejected:
                await tokenized()
            assert rejected.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert from_rpc_error(rejected.value).retry_after_s > 0  # type: ignore[attr-defined]
            writer.write(b'{"p": 12}')
            assert b" 400 " in await reader.readuntil(b"}}")
        assert (await tokenized()).tokens


EXPECTING, JSON = "Expect: 100-continue", "Content-Type: application/json"
HALF = 3 << 20
"""More than half of the bytes that a router holds at least."""


@pytest.mark.parametrize("limit", ["max_body_bytes_per_key", "max_body_bytes_in_all"])
async def test_bytes_of_bodies_are_limited_in_both_apis(tmp_path: Path, limit: str) -> None:
    config = {"http": {"max_body_bytes": 4 << 20}, limit: 4 << 20}
    async with locked(tmp_path, {}, **config) as router, asyncio.timeout(LIMIT_S):
        other = "alice" if limit == "max_body_bytes_per_key" else "bob"
        keys = {name: f"Authorization: Bearer {token}" for name, token in router.tokens.items()}
        text = pb.TokenizeRequest(text="x " * (HALF // 2))
        tokenized = partial(router.rig.rig.stub.Tokenize, text, metadata=router.metadata(other))
        line, length = "POST /tokenize HTTP/1.1", f"Content-Length: {HALF}"
        chunk = b"%x\r\n%b\r\n" % (HALF, b" " * HALF)
        async with connected_to(router.rig.url) as (reader, writer):
            writer.write(request(line, keys["alice"], EXPECTING, JSON, length))
            await reader.readuntil(b"100 Continue")
            for rejected in (
                request(line, keys[other], JSON, length),
                request(line, keys[other], JSON, "Transfer-Encoding: chunked", body=chunk),
            ):
                async with connected_to(router.rig.url) as (its_reader, its_writer):
                    its_writer.write(rejected)
                    response = await its_reader.readuntil(b"}}")
                    assert b" 429 " in response and limit.encode() in response
            with pytest.raises(grpc.aio.AioRpcError, match=limit) as error:
                await tokenized()
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            writer.write(b" " * HALF)
            assert b" 400 " in await reader.readuntil(b"}}")
        with pytest.raises(grpc.aio.AioRpcError, match="prompt_characters"):
            await tokenized()


async def test_no_log_tells_a_token_a_hash_or_a_prompt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with locked(tmp_path) as router:
        http, prompt = router.rig.http, "a-prompt-of-somebody"
        for headers in (router.headers("alice"), {"authorization": "Bearer a-wrong-token"}):
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
            await http.post("/v1/completions", json=body, headers=headers)
        router.file.write_text("keys: {alice: {sha256: a-token-in-its-place}}")
        await http.get("/v1/models", headers=router.headers("alice"))
        hashes = router.file.read_text()
    shown = [formatter(TelemetryConfig(log_format=form), "router") for form in ("text", "json")]
    ours = [record for record in caplog.records if record.name.split(".")[0] in ("router", "services")]
    logged = "\n".join(form.format(record) for form in shown for record in ours)
    assert "the last valid content stays in use" in logged and "api_key=alice" in logged
    for secret in (*router.tokens.values(), "a-wrong-token", "a-token-in-its-place", prompt, hashes):
        assert secret not in logged
