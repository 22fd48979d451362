"""Responses that may fill the context: every replica serves them, and they end with its context."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from router.config import LimitsConfig
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, dies_at
from tests.contract.http_rig import MODEL, TEMPLATE
from tests.contract.router_rig import running

LONG, SHORT = 512, 128


def replicas(mode: str) -> tuple[list[FakeTarget], list[FakeDrafter]]:
    """Return targets and drafters; those that decode in this mode have a long and a short context."""
    models = [HashModel(context_length=length) for length in (LONG, SHORT)]
    if mode == "draft":
        return [FakeTarget(models[0])], [FakeDrafter(each, standalone_sequences=4) for each in models]
    return [FakeTarget(each) for each in models], [FakeDrafter(models[0])]


class Chats:
    """A client of a router that sends chats without a number of new tokens."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def send(self, mode: str) -> tuple[str, str, int]:
        """Return the text of a response, its finish reason, and the length of its sequence."""
        own = {"model": f"{MODEL}-draft"} if mode == "draft" else {"speculation": {"mode": mode}}
        body = {"model": MODEL, "messages": [{"role": "user", "content": "the fox"}], **own}
        response = await self._http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        found = response.json()
        (choice,) = found["choices"]
        return choice["message"]["content"], choice["finish_reason"], found["usage"]["total_tokens"]


@asynccontextmanager
async def serving(
    model: Path, targets: Sequence[FakeTarget], drafters: Sequence[FakeDrafter]
) -> AsyncIterator[Chats]:
    (model / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    config: dict[str, Any] = {
        "http_port": 0,
        "model_name": MODEL,
        "chat_template": model / "chat.jinja",
        "balancing": "round_robin",
        "replica_wait_s": 0.2,
        "limits": LimitsConfig(default_new_tokens=20),
    }
    async with (
        running(model, targets, drafters, **config) as rig,
        httpx2.AsyncClient(base_url=rig.addresses[1], timeout=240) as http,
    ):
        yield Chats(http)


@pytest.mark.parametrize("mode", ["plain", "exact", "draft"])
async def test_every_replica_serves_them_up_to_its_own_context(model: Path, mode: str) -> None:
    async with serving(model, *replicas(mode)) as chats:
        found = [await chats.send(mode) for _ in range(4)]
    assert sorted(length for *_, length in found) == [SHORT, SHORT, LONG, LONG]
    assert {reason for _, reason, _ in found} == {"length"}


@pytest.mark.parametrize(("mode", "step"), [("plain", 20), ("exact", 3), ("draft", 20)])
@pytest.mark.parametrize("is_longer", [False, True])
async def test_they_continue_at_a_shorter_context_or_end_with_what_they_have(
    model: Path, mode: str, step: int, is_longer: bool
) -> None:
    targets, drafters = replicas(mode)
    lost, kept = drafters if mode == "draft" else targets
    async with serving(model, targets, drafters) as chats:
        whole, _, _ = max([await chats.send(mode) for _ in range(2)], key=lambda found: found[2])
        lost.num_steps = 0
        dies_at(lost, 10 * step if is_longer else step)
        found = [await chats.send(mode) for _ in range(2)]
    at_kept, moved = sorted(length for *_, length in found)
    assert at_kept == SHORT and (SHORT < moved < LONG if is_longer else moved == SHORT)
    assert {reason for _, reason, _ in found} == {"length"}
    assert all(whole.startswith(text.rstrip("\ufffd")) for text, _, _ in found)
    assert kept.num_opened == 2 + (not is_longer)
