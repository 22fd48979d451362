"""HTTP requests as a whole: bodies, paths, ids, control tokens, and the document that describes them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from flyserve.v1 import generation_pb2 as pb
from tests.contract.http_rig import MODEL, HttpRig, error_of, events, serving_http

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving_http(tmp_path_factory.mktemp("model")) as rig:
        yield rig


async def test_fields_that_ask_for_nothing_are_taken(rig: HttpRig) -> None:
    idle: dict[str, Any] = {
        "user": "someone", "metadata": {"a": "b"}, "store": False, "tools": None, "tool_choice": "none",
        "response_format": {"type": "text"}, "parallel_tool_calls": True, "service_tier": "auto",
        "temperature": None, "stop": None, "n": None, "logit_bias": None, "seed": None,
        "max_tokens": 3, "speculation": None, "modalities": ["text"],
    }  # fmt: skip
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "fox"}]
    said = [
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None},
        {"role": "user", "content": parts, "name": "someone"},
    ]
    response = await rig.post(CHAT, {"model": MODEL, "messages": said, **idle})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 3


ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('one system message') }}{% endif %}{{ m.role }}: {{ m.content }}; {% endfor %}"
)
BRIEF, RULES = ({"role": role, "content": role} for role in ("system", "developer"))


@pytest.mark.parametrize(
    ("own", "listed", "prompt"),
    [
        ("", [BRIEF, RULES, *HELLO], "system: system\n\ndeveloper; user: hello; "),
        ("", [RULES, *HELLO], "system: developer; user: hello; "),
        ("", [*HELLO, RULES], "system: developer; user: hello; "),
        ("{# 'developer' #}", [BRIEF, RULES, *HELLO], "system: system; developer: developer; user: hello; "),
    ],
)
async def test_a_developers_message_is_a_part_of_the_only_system_message(
    tmp_path: Path, own: str, listed: list[dict[str, Any]], prompt: str
) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(ONE_SYSTEM + own, encoding="utf-8")
    short: dict[str, Any] = {"speculation": {"mode": "plain"}}
    async with serving_http(tmp_path, chat_template=file) as rig:
        ids = (await rig.post("/tokenize", {"prompt": prompt})).json()["tokens"]
        found = await rig.post("/tokenize", {"messages": listed})
        assert found.json()["tokens"] == ids, found.text
        chat = await rig.post(CHAT, {"messages": listed, "max_tokens": 1, **short})
        assert chat.json()["usage"]["prompt_tokens"] == len(ids), chat.text
        instructed = {"instructions": "system"} if BRIEF in listed else {}
        items = [each for each in listed if each != BRIEF]
        body = {"input": items, "max_output_tokens": 1, **instructed, **short}
        response = await rig.post("/v1/responses", body)
        assert response.json()["usage"]["input_tokens"] == len(ids), response.text
        twice = await rig.post("/v1/responses", {**body, "instructions": "x", "input": [BRIEF, *HELLO]})
        assert twice.status_code == 200, twice.text


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b'{"model": "fake",', 400, "is not JSON"),
        (b"", 400, "is not JSON"),
        (b'{"model": "\xff"}', 400, "is not UTF-8: byte 11"),
        (b'{"model": "\\ud800"}', 400, "is not JSON"),
        (b'{"temperature": NaN}', 400, "is not JSON"),
        (b"[" * 10_000, 400, "is not JSON"),
        (b"[1]", 400, "must be a JSON object, found an array"),
        (b"null", 400, "must be a JSON object, found null"),
        (b'"' + b"x" * (9 << 20) + b'"', 413, "has more than 8388608 bytes"),
    ],
)
async def test_a_body_that_cannot_be_read(rig: HttpRig, body: bytes, status: int, part: str) -> None:
    response = await rig.post(COMPLETIONS, body)
    assert response.status_code == status and part in error_of(response)["message"]


async def test_a_request_without_a_model_is_one_to_the_served_model(rig: HttpRig) -> None:
    short = {"max_tokens": 1}
    bodies = {
        COMPLETIONS: {"prompt": "the", **short},
        CHAT: {"messages": HELLO, **short},
        "/v1/responses": {"input": "the", "max_output_tokens": 1, "store": False},
    }
    for path, body in bodies.items():
        for named in ({}, {"model": None}):
            response = await rig.http.post(path, json={**body, **named})
            assert response.status_code == 200, response.text
            assert response.json()["model"] == MODEL


async def test_a_body_that_grows_beyond_the_limit_is_not_kept(rig: HttpRig) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * (1 << 18)

    headers = {"content-type": "application/json"}
    response = await rig.http.post(CHAT, content=endless(), headers=headers)
    assert response.status_code == 413 and error_of(response)["type"] == "invalid_request_error"


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async with serving_http(tmp_path, http={"body_timeout_s": 0.1}) as rig:
        host, port = rig.rig.addresses[1].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [
            f"POST {COMPLETIONS} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            "Content-Length: 9",
        ]
        writer.write("\r\n".join([*lines, "", "{"]).encode())
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        await writer.wait_closed()


async def test_another_type_path_or_method(rig: HttpRig) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = await rig.http.post(CHAT, content=b"{}", headers={"content-type": kind})
        assert (response.status_code, error_of(response)["param"]) == (415, "Content-Type")
    charset = {"content-type": "application/json; charset=utf-8"}
    assert (await rig.http.post(CHAT, content=b"{}", headers=charset)).status_code == 400
    assert (await rig.http.post("/v1/embeddings", json={})).status_code == 404
    assert error_of(await rig.http.get("/nowhere"))["message"] == "no such path"
    response = await rig.http.get(CHAT)
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert "POST" in error_of(response)["message"]


async def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    async with serving_http(tmp_path, chat_template=None) as rig:
        error = error_of(await rig.post(CHAT, {"model": MODEL, "messages": HELLO}))
    assert error["param"] == "messages" and "chat_template" in error["message"]
    assert error["code"] == "no_chat_template"


PRINTER = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ extra | tojson if extra }}"
    "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.id }}"
    "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }}{% endfor %}"
    "{% endfor %}{% endfor %}<eos>"
)
"""Template that prints all texts of a request, and ends with a control token."""


async def test_control_tokens_are_only_text_in_every_api(tmp_path: Path) -> None:
    text, arguments = "<eos> and <eo", json.dumps({"<eos>": "<eos>"})
    parameters = {"type": "object", "properties": {"<eos>": {"type": "string", "description": "<eos>"}}}
    extra = {"chat_template_kwargs": {"extra": {"<eos>": "<eos>"}}}
    call = {"id": "<eos>", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = [{"role": "user", "content": text}, {"role": "assistant", "content": "s>", "tool_calls": [call]}]
    items = [
        {"role": "user", "content": text},
        {"type": "function_call", "call_id": "<eos>", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "<eos>", "output": "<eos>"},
    ]
    function = {"name": "f", "parameters": parameters}
    bodies: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": said, "tools": [{"type": "function", "function": function}], "max_tokens": 1}),
        (
            "/v1/responses",
            {"instructions": text, "input": items, "tools": [{"type": "function", **function}]},
        ),
    ]
    printer = tmp_path / "printer.jinja"
    printer.write_text(PRINTER, encoding="utf-8")
    async with serving_http(tmp_path, tool_parser="hermes", chat_template=printer) as rig:
        for path, body in bodies:
            response = await rig.post(path, {"model": MODEL, **extra, **body})
            assert response.status_code == 200, response.text
        prompts = [step.update.tokens for step in rig.target.asked if not step.update.keep]
        tokenized = (await rig.post("/tokenize", {"messages": said, **extra})).json()["tokens"]
        asked = pb.TokenizeRequest(messages=[pb.ChatMessage(role="<eos>", content=text)])
        tokens = (await rig.rig.stub.Tokenize(asked)).tokens
        ids = [*prompts, tuple(tokenized), tuple(token.id for token in tokens)]
    assert len(ids) == 4 and all(prompt.count(0) == 1 and prompt[-1] == 0 for prompt in ids)


async def test_a_request_id_is_taken_and_told(rig: HttpRig) -> None:
    response = await rig.post(
        COMPLETIONS, {"model": MODEL, "prompt": "hi", "max_tokens": 1}, x_request_id="me-7"
    )
    assert response.headers["x-request-id"] == "me-7" and response.json()["id"] == "cmpl-me-7"
    assert rig.target.openings[-1].request_id == "me-7"
    rejected = await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "hi"}, x_request_id="x" * 300)
    assert error_of(rejected)["param"] == "X-Request-Id"
    assert (await rig.http.get("/version")).headers["x-request-id"]


async def test_pages_of_other_origins_are_let_in_only_where_they_are_named(tmp_path: Path) -> None:
    asks = {"origin": "https://there", "access-control-request-method": "POST"}
    async with serving_http(tmp_path) as rig:
        response = await rig.http.options(CHAT, headers=asks)
        assert response.status_code == 405 and "access-control-allow-origin" not in response.headers
    async with serving_http(tmp_path, http={"cors_origins": ["https://here"]}) as rig:
        assert (await rig.http.options(CHAT, headers=asks)).status_code == 400
        asks["origin"] = "https://here"
        response = await rig.http.options(CHAT, headers=asks)
        assert response.headers["access-control-allow-origin"] == "https://here"


async def test_usage_may_come_with_every_chunk(rig: HttpRig) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": MODEL, "prompt": "the fox", "max_tokens": 30, "stream": True, "stream_options": options}
    counts = [c["usage"]["completion_tokens"] for c in events((await rig.post(COMPLETIONS, body)).text)]
    assert counts == sorted(counts) and counts[-2:] == [30, 30] and counts[0] < 30


async def test_the_document_describes_what_is_served(rig: HttpRig) -> None:
    document = (await rig.http.get("/openapi.json")).json()
    served = {COMPLETIONS, CHAT, "/v1/responses", "/v1/models", "/v1/models/{model}", "/health", "/version"}
    assert set(document["paths"]) == served | {"/tokenize", "/detokenize", "/tokenizer_info", "/metrics"}
    assert json.dumps(document).count('"enum": ["fake", "fake-draft"]') >= 3
