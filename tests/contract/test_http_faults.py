"""HTTP requests whose client cancels, that find no slot, that time out, or whose servers fail."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fakes import closed, dies_at, held
from tests.contract.http_rig import MODEL, HttpRig, error_of, serving_http
from tests.contract.router_rig import PLAIN, make_request

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_reader_that_leaves_frees_everything(rig: HttpRig, stream: bool, n: int) -> None:
    held(rig.target, first=7)
    body = {"model": MODEL, "prompt": "the fox", "max_tokens": 400, "stream": stream, "n": n, "seed": 1}
    request = rig.http.build_request("POST", COMPLETIONS, json=body)
    sending = asyncio.create_task(rig.http.send(request, stream=True))
    if stream:
        response = await sending
        await anext(response.aiter_bytes())
        await rig.drafter.stepped.wait()
        await response.aclose()
    else:
        await rig.target.stepped.wait()
        await rig.drafter.stepped.wait()
        sending.cancel()
    await closed(rig.target, rig.drafter)
    rig.target.script = rig.drafter.script
    assert len((await rig.complete(max_tokens=4))["choices"]) == 1


class BusyPool(ThreadPoolExecutor):
    """Threads that do one work, and begin no other."""

    def __init__(self) -> None:
        super().__init__(1)
        self.waiting = asyncio.Queue[Future[Any]]()
        self._has_begun = False

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        if not self._has_begun:
            self._has_begun = True
            return super().submit(work, *arguments, **named)
        future = Future[Any]()
        self.waiting.put_nowait(future)
        return future


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
async def test_a_reader_that_leaves_before_its_prompt_is_made_is_noticed(rig: HttpRig, path: str) -> None:
    loop, long = asyncio.get_running_loop(), [{"role": "user", "content": "the fox " * 9_000}]
    ended = asyncio.Event()
    # The body is parsed; the prompt waits for a thread.
    loop.set_default_executor(pool := BusyPool())
    try:
        body = {"model": MODEL, "messages" if path == CHAT else "input": long}
        sending = asyncio.create_task(rig.post(path, body))
        async with asyncio.timeout(240):
            prompt = await pool.waiting.get()
            prompt.add_done_callback(lambda _: ended.set())
            sending.cancel()
            await ended.wait()
        assert prompt.cancelled() and not rig.target.openings
    finally:
        loop.set_default_executor(ThreadPoolExecutor())
        pool.shutdown()


async def test_a_full_house_says_when_to_come_back(tmp_path: Path) -> None:
    async with serving_http(tmp_path, max_concurrent=1, max_queued=0) as rig:
        release = held(rig.target)
        first = asyncio.create_task(rig.complete(max_tokens=3))
        await rig.target.stepped.wait()
        for stream in (True, False):
            body = {"model": MODEL, "prompt": "x", "stream": stream}
            response = await rig.post(COMPLETIONS, body)
            assert response.status_code == 429 and response.headers["retry-after"] == "1"
            assert error_of(response)["type"] == "rate_limit_error"
        release.set()
        await first


async def test_what_cannot_be_served_is_rejected_before_its_prompt_is_made(tmp_path: Path) -> None:
    async with serving_http(tmp_path, max_concurrent=1, max_queued=0) as rig:
        release = held(rig.target)
        first = asyncio.create_task(rig.complete(max_tokens=3))
        await rig.target.stepped.wait()
        faulty = [{"role": "system", "content": "a prompt that the template rejects"}]
        bodies: dict[str, dict[str, Any]] = {CHAT: {"messages": faulty}, "/v1/responses": {"input": faulty}}
        for path, body in bodies.items():
            full = await rig.post(path, body)
            assert (full.status_code, full.headers["retry-after"]) == (429, "1")
            unknown = await rig.post(path, {**body, "model": "other"})
            assert (unknown.status_code, error_of(unknown)["param"]) == (404, "model")
        counted = 'flyserve_requests_total{mode="unknown",outcome="overloaded"} 2.0'
        assert counted in (await rig.http.get("/metrics")).text
        release.set()
        await first
        for path, body in bodies.items():
            assert (await rig.post(path, body)).status_code == 400
            assert (await rig.post(path, {**body, "model": ""})).status_code == 400


async def test_a_timeout_ends_the_work(rig: HttpRig) -> None:
    held(rig.target)
    body = {"model": MODEL, "prompt": "x", "timeout": 30}
    response = await rig.post(COMPLETIONS, body, x_request_timeout="0.1")
    assert response.status_code == 504 and "0.1 s" in error_of(response)["message"]
    response = await rig.post(CHAT, {"model": MODEL, "messages": HELLO, "timeout": 0.1, "stream": True})
    assert response.status_code == 504 and error_of(response)["code"] == "deadline_exceeded"
    await closed(rig.target)


ODD_TIMEOUTS = ("soon", "", "-1", "-0.0", "0", "nan", "inf", "86400.1", "1e18", "1e308", "1e999", "9" * 5000)


async def test_a_timeout_is_positive_and_at_most_a_day_and_an_error_names_what_was_sent(rig: HttpRig) -> None:
    bodies = {
        COMPLETIONS: {"model": MODEL, "prompt": "x", "max_tokens": 1},
        CHAT: {"model": MODEL, "messages": HELLO, "max_tokens": 1},
        "/v1/responses": {"model": MODEL, "input": "x", "max_output_tokens": 1},
    }
    for path, body in bodies.items():
        for said in ODD_TIMEOUTS:
            response = await rig.post(path, body, x_request_timeout=said)
            assert (response.status_code, error_of(response)["param"]) == (400, "X-Request-Timeout"), said
            assert len(error_of(response)["message"]) < 200
        for value in (-1, -0.0, 0, 86400.1, 1e18, 1e308, 10**400, "1e5", True):
            response = await rig.post(path, {**body, "timeout": value})
            assert (response.status_code, error_of(response)["param"]) == (400, "timeout"), value
        for said in ("86400", "1e4", "1.5"):
            response = await rig.post(path, {**body, "timeout": float(said)}, x_request_timeout=said)
            assert response.status_code == 200


@pytest.mark.parametrize("timeout_s", [None, 86_400.0, 1e9])
async def test_a_deadline_of_grpc_is_at_most_a_day(rig: HttpRig, timeout_s: float | None) -> None:
    await rig.rig.stub.Generate(make_request(PLAIN, 2), timeout=timeout_s)
    (opening,) = rig.target.openings
    assert opening.deadline_ms == (0 if timeout_s is None else pytest.approx(86_400_000, abs=60_000))


async def test_without_a_target_it_is_not_ready(tmp_path: Path) -> None:
    async with serving_http(tmp_path, replica_wait_s=0.1) as rig:
        assert (await rig.http.get("/health")).json() == {"status": "ready"}
        dies_at(rig.target, 1)
        for _ in range(2):
            response = await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "x", "stream": True})
            assert (response.status_code, error_of(response)["code"]) == (503, "not_ready")
        assert (await rig.http.get("/health")).status_code == 503
        assert "max_model_len" not in (await rig.http.get("/v1/models")).json()["data"][0]


async def test_a_fault_of_the_servers_own_has_an_id_and_no_text(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("router.service.prepare", broken)
    response = await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "x"})
    error = error_of(response)
    assert (response.status_code, error["type"], error["code"]) == (500, "server_error", "internal_error")
    assert "secret" not in response.text and error["message"].split()[-1] in caplog.text
