"""Public bug reports of inference servers as requests: the symptom, the request, the right answer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.contract.http_rig import MODEL, HttpRig, error_of, events

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
USER = {"role": "user", "content": "the fox"}
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 30},
    COMPLETIONS: {"prompt": "the fox", "max_tokens": 30},
    RESPONSES: {"input": "the fox", "max_output_tokens": 30},
}
"""Fields of a request that is served, by path."""


@dataclass(frozen=True)
class Report:
    """A report, or a kind of its siblings.

    Attributes:
        threads: Public threads as repository#number, separated by spaces; "" for a sibling.
        symptom: Fault of the server that it was about.
        path: Path of the request.
        fields: Its fields, in addition to those of `LEAST`.
        refused: Field that the answer names; None if the request is served.
        words: Words of the error, or of a warning.
    """

    threads: str
    symptom: str
    path: str
    fields: dict[str, Any] = field(default_factory=dict)
    refused: str | None = None
    words: str = ""

    @property
    def body(self) -> dict[str, Any]:
        return {"model": MODEL, **LEAST[self.path], **self.fields}

    def __str__(self) -> str:
        return f"{self.threads or 'sibling'}: {self.symptom} ({self.path})"


async def answer(rig: HttpRig, report: Report) -> dict[str, Any]:
    """Send the request whole and streamed; return the whole answer, once both are as the report says."""
    whole = await rig.post(report.path, report.body)
    stream = await rig.post(report.path, {**report.body, "stream": True})
    for response in (whole, stream):
        assert response.status_code == (200 if report.refused is None else 400), f"{report}: {response.text}"
        if report.refused is not None:
            error = error_of(response)
            assert error["param"] == report.refused and report.words in error["message"], f"{report}: {error}"
    if report.refused is not None:
        return {}
    found: dict[str, Any] = whole.json()
    streamed = text_of_stream(report.path, stream.text)
    assert streamed == text_of(report.path, found), f"{report}: {streamed!r}"
    if report.words:
        assert any(report.words in each for each in found["warnings"]), f"{report}: {found}"
        assert report.words in stream.text, f"{report}: {stream.text}"
    return found


def text_of(path: str, body: dict[str, Any]) -> str:
    """Return the text of a whole answer."""
    if path == RESPONSES:
        parts = [part for item in body["output"] for part in item.get("content") or ()]
        return "".join(part["text"] for part in parts)
    if path == CHAT:
        return "".join(choice["message"]["content"] or "" for choice in body["choices"])
    return "".join(choice["text"] for choice in body["choices"])


def text_of_stream(path: str, sent: str) -> str:
    """Return the text of a streamed answer with one choice."""
    return "".join(_deltas(path, sent))


def _deltas(path: str, sent: str) -> Iterator[str]:
    if path == RESPONSES:
        for line in sent.splitlines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
            if event.get("type") in ("response.output_text.delta", "response.reasoning_text.delta"):
                yield event["delta"]
        return
    for chunk in events(sent):
        for choice in chunk["choices"]:
            yield choice["text"] if path == COMPLETIONS else choice["delta"].get("content") or ""
