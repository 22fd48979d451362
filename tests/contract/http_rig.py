"""A router with its HTTP face on loopback, its clients: the `openai` package, and one for anything else."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI

from tests.contract.fakes import HashModel, save_tokenizer
from tests.contract.router_rig import Rig, running
from tests.contract.scripted import LoggingDrafter, LoggingTarget, SeededModel

MODEL = "fake"
TEMPLATE = (
    "{% if messages[-1].role != 'user' %}{{ raise_exception('the last message must be the user\\'s') }}"
    "{% endif %}{% for message in messages %}{{ message.content }}{{ tail or '\\n' }}{% endfor %}"
)


@dataclass
class HttpRig:
    """A running router and its clients."""

    rig: Rig
    openai: AsyncOpenAI
    http: httpx2.AsyncClient
    target: LoggingTarget
    drafter: LoggingDrafter

    @property
    def url(self) -> str:
        return self.rig.addresses[1]

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """Sends JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(
            path, content=content, headers={"content-type": "application/json", **named}
        )

    async def complete(self, **fields: Any) -> dict[str, Any]:
        """A completion, as plain data."""
        response = await self.post("/v1/completions", {"model": MODEL, "prompt": "the fox", **fields})
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    async def stream(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed response; `[DONE]` has come after them."""
        response = await self.post(path, {"model": MODEL, "stream": True, **fields})
        assert response.headers["content-type"].startswith("text/event-stream"), response.text
        return events(response.text)


def events(text: str) -> list[dict[str, Any]]:
    """Return the contents of a stream's events."""
    *chunks, done = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """The error object, which has OpenAI's four fields and no more."""
    assert response.headers["content-type"] == "application/json" and response.headers["x-request-id"]
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


@asynccontextmanager
async def serving_http(
    folder: Path,
    agreement: float = 0.8,
    model: HashModel | None = None,
    markers: Sequence[str] = (),
    **config: Any,
) -> AsyncIterator[HttpRig]:
    """Serves until the block is left; the model has a chat template, its tokens depend on the seed.

    `model` is that of the target, in place of the usual one; `markers` are special tokens.
    """
    template = folder / "chat.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    target = LoggingTarget(model or SeededModel(certain_share=0.3))
    drafter = LoggingDrafter(SeededModel(agreement=agreement))
    config = {"http_port": 0, "model_name": MODEL, "chat_template": template, **config}
    async with running(save_tokenizer(folder, markers=markers), [target], [drafter], **config) as rig:
        url = rig.addresses[1]
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=240) as openai,
            httpx2.AsyncClient(base_url=url, timeout=240) as http,
        ):
            yield HttpRig(rig, openai, http, target, drafter)
