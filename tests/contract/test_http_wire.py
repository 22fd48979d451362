"""Requests on the wire: forms that are ambiguous or rare, and connections whose clients are silent."""

import asyncio
import json
import logging
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.contract.fakes import held
from tests.contract.http_rig import MODEL, HttpRig, serving_http
from tests.contract.wire_rig import (
    LAST,
    LIMIT_S,
    Wire,
    connected_to,
    post,
    request,
    sent,
    statuses,
    until_closed,
)

PATH = "/v1/completions"
BODY = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}).encode()
CHUNKED = "Transfer-Encoding: chunked"
JSON = "Content-Type: application/json"
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
EXPECTING = "Expect: 100-continue"


def get(target: str, *headers: str, host: str | None = "localhost", version: str = "1.1") -> bytes:
    return request(f"GET {target} HTTP/{version}", *headers, host=host)


FORMS: dict[str, tuple[bytes, list[int]]] = {
    "usual": (post(PATH, body=BODY), [200, 200]),
    "chunks": (request(f"POST {PATH} HTTP/1.1", JSON, CHUNKED, body=IN_CHUNKS), [200, 200]),
    # The end of the body is ambiguous: nothing after it is answered.
    "both lengths": (post(PATH, CHUNKED, body=b"0\r\n\r\n"), [400]),
    "both lengths, one true": (post(PATH, CHUNKED, body=IN_CHUNKS), [400]),
    "both lengths, no body read": (get("/version", CHUNKED, "Content-Length: 5") + b"0\r\n\r\n", [400]),
    "chunks in HTTP/1.0": (
        request(f"POST {PATH} HTTP/1.0", JSON, CHUNKED, "Connection: keep-alive", body=IN_CHUNKS),
        [400],
    ),
    "two transfer encodings": (request(f"POST {PATH} HTTP/1.1", CHUNKED, CHUNKED), [400]),
    "another transfer encoding": (
        request(f"POST {PATH} HTTP/1.1", "Transfer-Encoding: gzip, chunked"),
        [400],
    ),
    "two lengths": (post(PATH, "Content-Length: 3", body=BODY), [400]),
    "a long length": (request(f"POST {PATH} HTTP/1.1", f"Content-Length: {'9' * 5000}"), [400]),
    "a header with _ is another one": (post(PATH, "Transfer_Encoding: chunked", body=BODY), [200, 200]),
    "a folded length": (
        request(f"POST {PATH} HTTP/1.1", JSON, "Content-Length:\r\n 2", body=b"{}"),
        [400, 200],
    ),
    # Content types and encodings.
    "two types": (post(PATH, "Content-Type: text/plain", body=BODY), [415, 200]),
    "two equal types": (post(PATH, JSON, body=BODY), [415, 200]),
    "gzip": (post(PATH, "Content-Encoding: gzip"), [415, 200]),
    "identity and br": (post(PATH, "Content-Encoding: identity", "content-encoding: br"), [415, 200]),
    "identity": (post(PATH, "Content-Encoding: Identity", body=BODY), [200, 200]),
    "gzip to be tokenized": (post("/tokenize", "Content-Encoding: gzip"), [415, 200]),
    # Targets.
    "absolute": (get("http://localhost:1/version"), [200, 200]),
    "absolute, in capitals": (get("HTTPS://LOCALHOST/version?x=http://y"), [200, 200]),
    "absolute without a path": (get("http://localhost"), [200, 200]),
    "absolute, encoded": (get("http://localhost/versio%6e"), [200, 200]),
    "absolute to work": (post("http://localhost/v1/completions", body=BODY), [200, 200]),
    "absolute, nowhere": (get("http://localhost/nowhere"), [404, 200]),
    "the target's host counts": (get("http://evil.example/version"), [421, 200]),
    "the header's host does not": (get("http://localhost/version", host="evil.example"), [200, 200]),
    "a user in the target": (get("http://localhost@evil.example/version"), [421, 200]),
    "no host in the target": (get("http:///version"), [421, 200]),
    "no URL": (get("http://[/version"), [400, 200]),
    "asterisk": (request("OPTIONS * HTTP/1.1"), [404, 200]),
    "authority": (request("CONNECT localhost:80 HTTP/1.1"), [404, 200]),
    # Hosts and versions.
    "no host": (get("/version", host=None), [400]),
    "two hosts": (get("/version", "Host: localhost"), [400]),
    "HTTP/1.0": (get("/version", version="1.0"), [200]),
    "HTTP/1.0 without a host": (get("/version", host=None, version="1.0"), [421]),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", [400]),
    "an empty line": (b"\r\n", [400]),
    # A client that waits before its body.
    "expected": (post(PATH, EXPECTING, body=BODY), [100, 200, 200]),
    "expected and rejected": (
        request(f"POST {PATH} HTTP/1.1", EXPECTING, "Content-Length: 5", "Content-Encoding: gzip"),
        [415],
    ),
    "an offer of another protocol": (
        get("/version", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"),
        [200, 200],
    ),
    "another expectation": (post(PATH, "Expect: x", body=BODY), [200, 200]),
}


async def test_every_form_of_a_request_has_its_status(rig: HttpRig, caplog: pytest.LogCaptureFixture) -> None:
    found = {name: statuses(await sent(rig.url, data + LAST)) for name, (data, _) in FORMS.items()}
    assert found == {name: expected for name, (_, expected) in FORMS.items()}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


async def test_errors_of_the_form_name_the_header_and_what_to_do(rig: HttpRig) -> None:
    gzip = await sent(rig.url, FORMS["gzip"][0] + LAST)
    assert b"accept-encoding: identity" in gzip.lower() and b'"param":"Content-Encoding"' in gzip
    both = await sent(rig.url, FORMS["both lengths"][0])
    assert b"connection: close" in both.lower() and b"Content-Length and Transfer-Encoding" in both


async def test_a_body_that_breaks_after_its_response_only_ends_the_connection(
    rig: HttpRig, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected_to(rig.url) as (reader, writer):
        writer.write(request(f"POST {PATH} HTTP/1.1", CHUNKED))
        assert b" 415 " in await asyncio.wait_for(reader.readuntil(b"}}"), LIMIT_S)
        writer.write(b"no chunk\r\n")
        assert await until_closed(reader) == b""
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def trickled(wire: Wire, data: bytes) -> bytes:
    """Send bytes one by one, for ever the last one, until the server ends the connection."""
    reader, writer = wire
    ending = asyncio.create_task(until_closed(reader))
    for index in range(10**6):
        if ending.done():
            break
        writer.write(data[min(index, len(data) - 1) :][:1])
        await asyncio.wait((ending,), timeout=0.01)
    return await ending


async def test_a_client_that_owes_bytes_is_not_waited_for(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(serving_http(tmp_path, http={"header_timeout_s": 0.5}))
        first = get("/version"), get("/version"), get("/version", "Content-Length: 999999")
        wires = list[Wire]()
        for header in first:  # each is sent at once: a silent connection has little time
            wires.append(await stack.enter_async_context(connected_to(rig.url)))
            wires[-1][1].write(header)
        kept, again, answered = wires
        for reader, _ in (kept, again):
            assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"}"), LIMIT_S)
        half = get("/version", "X-A: ")[:-4]
        ended = {
            "half of the second header": await trickled(again, half),
            "half of the second header, sent with the first": await sent(rig.url, get("/version") + half),
            "nothing": await sent(rig.url, b""),
            "half of the first header": await sent(rig.url, half),
            "a body that goes on after its response": await trickled(answered, b"x"),
        }
        assert list(map(statuses, ended.values())) == [[], [200], [], [], [200]], ended
        # A connection between two requests owes nothing: it is open after all of these.
        reader, writer = kept
        writer.write(LAST)
        assert statuses(await until_closed(reader)) == [200]


async def test_the_oldest_silent_connection_makes_room_for_a_new_one(tmp_path: Path) -> None:
    async with serving_http(tmp_path, http={"max_connections": 3, "header_timeout_s": LIMIT_S}) as rig:
        async with connected_to(rig.url) as (first, _), connected_to(rig.url), connected_to(rig.url):
            assert statuses(await sent(rig.url, get("/health", "Connection: close"))) == [200]
            assert await until_closed(first) == b""
        release = held(rig.target)
        running = [asyncio.create_task(sent(rig.url, post(PATH, body=BODY) + LAST)) for _ in range(3)]
        while rig.target.num_open < len(running):
            await asyncio.sleep(0.01)
        assert await sent(rig.url, LAST) == b""
        release.set()
        assert [statuses(await each) for each in running] == [[200, 200]] * 3


async def test_a_client_that_reads_nothing_of_its_responses_is_disconnected(tmp_path: Path) -> None:
    http = {"max_connections": 1}
    async with serving_http(tmp_path, write_timeout_s=0.3, http=http) as rig, asyncio.timeout(LIMIT_S):
        host, port = rig.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            await asyncio.to_thread(client.sendall, get("/openapi.json") * 400)
            # It has requests, so it is not closed for a new connection, which gets no response before.
            while await sent(rig.url, LAST) == b"":
                await asyncio.sleep(0.05)


async def test_a_client_that_reads_nothing_of_a_stream_is_disconnected(tmp_path: Path) -> None:
    http = {"max_connections": 1}
    long = {"model": MODEL, "prompt": "x", "stream": True, "n": 16, "logprobs": 20, "ignore_eos": True}
    body = json.dumps({**long, "max_tokens": 400, "seed": 1}).encode()
    async with serving_http(tmp_path, write_timeout_s=0.3, http=http) as rig, asyncio.timeout(LIMIT_S):
        host, port = rig.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            await asyncio.to_thread(client.sendall, post(PATH, body=body))
            while not rig.target.num_opened:
                await asyncio.sleep(0.01)
            await rig.target.all_closed.wait()
            while await sent(rig.url, LAST) == b"":
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("further", [b"\r\n", get("/version"), b"x" * 10_000])
async def test_a_client_that_leaves_is_noticed_although_it_has_sent_more(
    rig: HttpRig, further: bytes
) -> None:
    gate = held(rig.target)
    try:
        async with connected_to(rig.url) as (_, writer), asyncio.timeout(LIMIT_S):
            writer.write(post(PATH, body=BODY))
            while not rig.target.num_open:
                await asyncio.sleep(0.01)
            writer.write(further)
            await writer.drain()
        async with asyncio.timeout(LIMIT_S):
            await rig.target.all_closed.wait()
    finally:
        gate.set()
