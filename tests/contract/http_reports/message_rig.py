"""Messages of chats and responses, whole and streamed, in one form; and a model that writes its prompt."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from tokenizers import Tokenizer

from flyserve.core.request import SamplingParams
from tests.contract.fakes import EOS, HashModel, save_tokenizer
from tests.contract.http_rig import HttpRig, serving_http

MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
TOOLS_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}|{% if think %}<think>\n{% endif %}"
    "{% if tools %}{# <tool_call> </think> #}{% endif %}"
)


@dataclass(frozen=True)
class Copier(HashModel):
    """A model that writes the text of its prompt, in which markers are tokens if the tokenizer has them."""

    folder: Path = Path()
    scripts: dict[tuple[int, ...], Sequence[int]] = field(default_factory=dict)
    context_length: int = 2048

    def choice(self, ids: Sequence[int], sampling: SamplingParams, prompt_length: int) -> int:
        prompt, place = tuple(ids[:prompt_length]), len(ids) - prompt_length
        if prompt not in self.scripts:
            tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
            text = tokenizer.decode(prompt, skip_special_tokens=False)
            self.scripts[prompt] = tokenizer.encode(text[: text.rindex("|")]).ids
        script = self.scripts[prompt]
        return script[place] if place < len(script) else EOS


@asynccontextmanager
async def serving_copier(folder: Path, markers: Sequence[str]) -> AsyncIterator[HttpRig]:
    """Serve a model that writes its prompt; `markers` are tokens of its vocabulary."""
    save_tokenizer(folder, markers=markers)
    template = folder / "tools.jinja"
    template.write_text(TOOLS_TEMPLATE, encoding="utf-8")
    model = Copier(folder=folder)
    async with serving_http(folder, model=model, markers=markers, chat_template=template) as rig:
        yield rig


PLAIN = {"speculation": {"mode": "plain"}}
"""Decoding without drafts, whose warnings are about the request alone."""


@dataclass(frozen=True)
class Answer:
    """A message, and how it ended; the arguments of its calls by the name of the tool."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    reason: str
    warnings: tuple[str, ...] = ()


async def chat(http: httpx2.AsyncClient, **fields: Any) -> tuple[Answer, Answer]:
    """Return the answer of a chat, whole and streamed, from two requests at the same time."""
    path = "/v1/chat/completions"
    whole, chunks = await asyncio.gather(_sent(http, path, fields), _events(http, path, fields))
    message, choice = whole["choices"][0]["message"], whole["choices"][0]
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [(function["name"], function["arguments"]) for function in functions]
    return Answer(
        message["content"] or "",
        message.get("reasoning", ""),
        tuple(calls),
        choice["finish_reason"],
        tuple(whole.get("warnings", ())),
    ), _joined([chunk for chunk in chunks if chunk["choices"]])


def _joined(chunks: Sequence[Mapping[str, Any]]) -> Answer:
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    parts = [call for delta in deltas for call in delta.get("tool_calls", ())]
    names = {part["index"]: part["function"]["name"] for part in parts if "id" in part}
    arguments = [
        "".join(part["function"]["arguments"] for part in parts if part["index"] == index) for index in names
    ]
    (reason,) = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]]
    return Answer(
        "".join(delta.get("content") or "" for delta in deltas),
        "".join(delta.get("reasoning", "") for delta in deltas),
        tuple(zip(names.values(), arguments, strict=True)),
        reason,
        tuple(chunks[-1].get("warnings", ())),
    )


async def respond(http: httpx2.AsyncClient, **fields: Any) -> tuple[Answer, Answer]:
    """Return the answer of `/v1/responses`, whole and streamed; its reason is its status, and its items'."""
    path = "/v1/responses"
    whole, events = await asyncio.gather(_sent(http, path, fields), _events(http, path, fields))
    return _of_items(whole), _of_items(events[-1]["response"])


def _of_items(response: Mapping[str, Any]) -> Answer:
    items = response["output"]

    def text(kind: str) -> str:
        return "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])

    calls = [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    reason = " ".join((response["status"], *(item["status"] for item in items)))
    return Answer(
        text("message"), text("reasoning"), tuple(calls), reason, tuple(response.get("warnings", ()))
    )


async def _sent(http: httpx2.AsyncClient, path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    response = await http.post(path, json=dict(fields))
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def _events(http: httpx2.AsyncClient, path: str, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    response = await http.post(path, json={**fields, "stream": True})
    assert response.status_code == 200, response.text
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def tool(parameters: Mapping[str, Any], name: str = "w", **more: Any) -> dict[str, Any]:
    """Return a tool of a chat."""
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool of a chat, or its choice, in the form of `/v1/responses`."""
    return {"type": "function", **given["function"]}
