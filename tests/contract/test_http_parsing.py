"""Requests that cost much to parse: work in one turn of the event loop has a limit, and so has a header."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h11
import pytest

from tests.contract.http_rig import serving_http
from tests.contract.wire_rig import LAST, post, request, sent, statuses

CHUNKED = "Transfer-Encoding: chunked"
JSON = "Content-Type: application/json"
TINY = b"1\r\n \r\n" * 40_000
END = b"0\r\n\r\n"
FIELDS = tuple(f"x-{number}: y" for number in range(100))
TRAILERS = "\r\n".join(("0", *FIELDS, "x: y", "", "")).encode()


class EventCounter:
    """Most HTTP events that one callback of an event loop has parsed."""

    def __init__(self) -> None:
        self.most = self.current = 0

    def add(self) -> None:
        self.current += 1
        self.most = max(self.most, self.current)


@contextmanager
def counted_events(monkeypatch: pytest.MonkeyPatch) -> Iterator[EventCounter]:
    counter, run, next_event = EventCounter(), asyncio.Handle._run, h11.Connection.next_event

    def run_counted(handle: Any) -> None:
        counter.current = 0
        run(handle)

    def next_counted(connection: h11.Connection) -> Any:
        counter.add()
        return next_event(connection)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.Handle, "_run", run_counted)
        patched.setattr(h11.Connection, "next_event", next_counted)
        yield counter


TINY_CHUNKS = {
    "a body that is read": (request("POST /tokenize HTTP/1.1", CHUNKED, JSON), [400, 200]),
    "a body whose request is answered": (request("GET /version HTTP/1.1", CHUNKED), [200, 200]),
}


@pytest.mark.parametrize("form", TINY_CHUNKS)
async def test_other_work_goes_on_while_tiny_chunks_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    header, expected = TINY_CHUNKS[form]
    async with serving_http(tmp_path) as rig:
        with counted_events(monkeypatch) as counter:
            responses = await asyncio.gather(*(sent(rig.url, header + TINY + END + LAST) for _ in range(3)))
        assert [statuses(each) for each in responses] == [expected] * 3
        assert counter.most < 400


async def test_a_large_body_takes_few_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b" " * (8 << 20)
    chunks = b"".join(b"10000\r\n%b\r\n" % body[:65536] for _ in range(len(body) // 65536))
    in_chunks = request("POST /tokenize HTTP/1.1", CHUNKED, JSON) + chunks + END
    async with serving_http(tmp_path) as rig:
        for whole in (post("/tokenize", body=body), in_chunks):
            with counted_events(monkeypatch) as counter:
                assert statuses(await sent(rig.url, whole + LAST)) == [400, 200]
            assert counter.most < 400


FORMS = {
    "100 fields": (request("GET /version HTTP/1.1", *FIELDS[1:]) + LAST, [200, 200]),
    "101 fields": (request("GET /version HTTP/1.1", *FIELDS) + LAST, [400]),
    "a header of 256 kB": (request("GET /version HTTP/1.1", f"x: {'y' * 250_000}") + LAST, [400]),
    "101 fields in a trailer": (
        request("POST /tokenize HTTP/1.1", CHUNKED, JSON, body=TRAILERS) + LAST,
        [400],
    ),
}


async def test_a_header_has_a_limit_although_it_arrives_at_once(tmp_path: Path) -> None:
    async with serving_http(tmp_path) as rig:
        found = {name: statuses(await sent(rig.url, data)) for name, (data, _) in FORMS.items()}
    assert found == {name: expected for name, (_, expected) in FORMS.items()}
