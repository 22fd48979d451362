"""The tokenizer over HTTP, in vLLM's shapes; what the server says of itself."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from flyserve.core.errors import ConfigError
from router.config import HttpConfig
from router.http import tokenization
from router.security.keys import issue_key
from services.common.config import parse
from tests.contract.fakes import save_tokenizer
from tests.contract.http_rig import MODEL, HttpRig, error_of, serving_http
from tests.contract.scripted import SeededModel
from tests.contract.wire_rig import LIMIT_S, connected_to, post

TEMPLATES = Path(__file__).parents[1] / "data/chat_templates"
HELLO = [{"role": "user", "content": "hello"}]


async def tokenized(rig: HttpRig, **fields: Any) -> dict[str, Any]:
    response = await rig.post("/tokenize", fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 512
    return found


async def test_a_text_and_back(rig: HttpRig) -> None:
    text = "the fox says 你好 😀"
    found = await tokenized(rig, prompt=text)
    assert found["token_strs"] is None
    named = await tokenized(rig, model=MODEL, prompt=text, return_token_strs=True, add_special_tokens=False)
    assert named["tokens"] == found["tokens"] and named["token_strs"][1] == "Ġfox"
    response = await rig.post("/detokenize", {"model": MODEL, "tokens": found["tokens"]})
    assert response.json() == {"prompt": text}
    assert (await rig.post("/detokenize", {"tokens": [0, *found["tokens"]]})).json() == {
        "prompt": f"<eos>{text}"
    }
    assert (await rig.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}
    assert (await tokenized(rig, prompt=""))["tokens"] == []
    completion = await rig.complete(prompt=text, max_tokens=1)
    assert completion["usage"]["prompt_tokens"] == found["count"]


async def test_a_conversation_is_the_prompt_of_its_answer(tmp_path: Path) -> None:
    async with serving_http(tmp_path) as rig:
        template = "{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}{{ tail }}"
        (tmp_path / "other.jinja").write_text(template)
    async with serving_http(tmp_path, chat_template=tmp_path / "other.jinja") as rig:
        texts = {
            "hello!": {},
            "hello": {"add_generation_prompt": False},
            "hello!?": {"add_generation_prompt": True, "chat_template_kwargs": {"tail": "?"}},
        }
        for text, fields in texts.items():
            found = await tokenized(rig, messages=HELLO, **fields)
            assert found["tokens"] == (await tokenized(rig, prompt=text))["tokens"], text
        info = (await rig.http.get("/tokenizer_info")).json()
        assert info["chat_template"] == template and {"eos_token", "bos_token", "tokenizer_class"} <= set(
            info
        )


TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
]
CALLED = [
    *HELLO,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "123456789", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "123456789", "content": "5"},
]


TEXT_ARGUMENTS = (
    "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.arguments + '!' }}{% endfor %}{% endfor %}{{ tools | tojson if tools }}"
)
"""A template that takes arguments as text alone, as that of DeepSeek does."""


@pytest.mark.parametrize(
    ("template", "parser"),
    [((TEMPLATES / "qwen3.jinja").read_text(), "auto"), (TEXT_ARGUMENTS, "deepseek")],
    ids=["qwen3", "text arguments"],
)
async def test_a_conversation_with_tools_has_the_tokens_of_its_chat(
    tmp_path: Path, template: str, parser: str
) -> None:
    (file := tmp_path / "tools.jinja").write_text(template, encoding="utf-8")
    model = SeededModel(certain_share=0.3, context_length=8192)
    async with serving_http(tmp_path, model=model, chat_template=file, tool_parser=parser) as rig:
        for fields in ({"messages": CALLED, "tools": TOOLS}, {"messages": CALLED}):
            found = await rig.post("/tokenize", fields)
            answer = await rig.post("/v1/chat/completions", {**fields, "max_tokens": 1})
            assert (found.status_code, answer.status_code) == (200, 200), (found.text, answer.text)
            assert found.json()["count"] == answer.json()["usage"]["prompt_tokens"]


async def test_a_completion_has_the_special_tokens_of_the_tokenizer_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_beginning(folder: Path, **options: Any) -> Path:
        file = save_tokenizer(folder, **options) / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.post_processor = TemplateProcessing(single="<end> $A", special_tokens=[("<end>", 1)])
        tokenizer.save(str(file))
        return folder

    monkeypatch.setattr("tests.contract.http_rig.save_tokenizer", with_beginning)
    counts = list[int]()
    async with serving_http(tmp_path) as rig:
        for asked in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            counts.append((await tokenized(rig, prompt="the fox", **asked))["count"])
            completion = await rig.complete(prompt=["the fox"], max_tokens=1, **asked)
            assert completion["usage"]["prompt_tokens"] == counts[-1]
            scored = await rig.complete(prompt="the fox", max_tokens=0, echo=True, logprobs=0, **asked)
            assert len(scored["choices"][0]["logprobs"]["tokens"]) == counts[-1]
    assert counts == [counts[0], counts[0], counts[0] - 1]


BAD: list[tuple[str, dict[str, Any], str | None, str]] = [
    ("/tokenize", {}, "prompt", "or messages must be set, and not both"),
    ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt", "and not both"),
    ("/tokenize", {"prompt": 7}, "prompt", "is 7"),
    ("/tokenize", {"prompt": "a" * 1_000_001}, "prompt", "1000001 characters, at most 1000000 are allowed"),
    ("/tokenize", {"messages": []}, "messages", "is []"),
    ("/tokenize", {"messages": HELLO, "add_special_tokens": True}, "add_special_tokens", "must not be true"),
    ("/tokenize", {"messages": HELLO, "documents": [1]}, "documents", "is not supported"),
    ("/tokenize", {"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template", "is not supported"),
    ("/tokenize", {"prompt": "a", "return_token_str": True}, "return_token_str", "mean return_token_strs?"),
    ("/detokenize", {}, "tokens", "is missing"),
    ("/detokenize", {"tokens": [3, 304]}, "tokens[1]", "is 304, must be 0 to 303"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]", "is -1"),
    ("/detokenize", {"tokens": "abc"}, "tokens", "is 'abc'"),
    ("/detokenize", {"tokens": [1] * 1_000_001}, "tokens", "has 1000001 ids, at most 1000000 are allowed"),
]  # fmt: skip


async def test_bad_input_is_named(rig: HttpRig) -> None:
    for path, body, param, part in BAD:
        response = await rig.post(path, body)
        error = error_of(response)
        assert (response.status_code, error["param"]) == (400, param) and part in error["message"], error
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        response = await rig.post(path, {"model": "gpt-4", **body})
        assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_work_ends_with_the_connection(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    has_begun, has_ended = asyncio.Event(), asyncio.Event()

    async def work(*_: Any) -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    monkeypatch.setattr(tokenization, "off_loop", work)
    async with asyncio.timeout(LIMIT_S):
        async with connected_to(rig.url) as (_, writer):
            writer.write(post(path))
            await has_begun.wait()
        await has_ended.wait()


async def test_models_tell_names_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "secret-place" / "my-model"
    folder.mkdir(parents=True)
    save_tokenizer(folder)
    async with serving_http(folder, model_name=None) as rig:
        listed = (await rig.http.get("/v1/models")).json()
        (model,) = listed["data"]
        assert (model["id"], model["root"], model["parent"]) == ("my-model", "my-model", None)
        assert model["max_model_len"] == 512 and "secret-place" not in json.dumps(listed)
    shutil.rmtree(folder)


HOSTS = ["api.example.com", "127.0.0.1", "FE80::1", "*.b.test"]


async def test_only_the_hosts_that_are_named_are_served(tmp_path: Path) -> None:
    async with serving_http(tmp_path, http={"allowed_hosts": HOSTS}) as rig:
        for host in ("api.example.com", "API.example.com:8000", "127.0.0.1:1", "[fe80::1]:1", "a.b.test"):
            assert (await rig.http.get("/v1/models", headers={"host": host})).status_code == 200
        for host in (
            "evil.example",
            "api.example.com.evil.example",
            "api.example.com@evil",
            "[",
            "x" * 300,
            "b.test",
        ):
            for path in ("/v1/models", "/health", "/metrics", "/nowhere"):
                response = await rig.http.get(path, headers={"host": host})
                error = error_of(response)
                assert (response.status_code, error["param"]) == (421, "Host") and len(error["message"]) < 200


async def test_on_loopback_without_keys_only_its_own_names_are_served(rig: HttpRig) -> None:
    for host in ("localhost", "LocalHost:1", "flyserve.localhost", "127.0.0.1", "[::1]:8000"):
        assert (await rig.http.get("/v1/models", headers={"host": host})).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "host.docker.internal"):
        response = await rig.http.get("/v1/models", headers={"host": host})
        assert response.status_code == 421 and "router.http.allowed_hosts" in error_of(response)["message"]


@pytest.mark.parametrize("is_named", [True, False])
async def test_any_host_is_served_where_it_is_configured_or_a_key_is_needed(
    tmp_path: Path, is_named: bool
) -> None:
    keys = tmp_path / "keys.yaml"
    token = issue_key(keys, "alice", {})
    config = {"http": {"allowed_hosts": ["*"]}} if is_named else {"security": {"auth_tokens_file": str(keys)}}
    async with serving_http(tmp_path, **config) as rig:
        evil = {"host": "evil.example", "authorization": f"Bearer {token}"}
        for path in ("/health/", "/playground/x", "/v1/completions/", "/metrics/"):
            response = await rig.http.get(path, headers=evil)
            # It is not redirected either: the path would lead to whatever host the request names.
            assert response.status_code == 404
            assert "evil.example" not in str(response.headers) + response.text
        response = await rig.http.get("/v1/models", headers=evil)
        assert response.status_code == 200 and "evil.example" not in response.text


@pytest.mark.parametrize("host", ["api.example.com:80", "http://x", "*example.com", "a b", "", "[::1]:8"])
def test_a_host_that_no_request_can_have_is_a_fault_of_the_configuration(host: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed_hosts\.0: .*must be a name such as"):
        parse(HttpConfig, {"allowed_hosts": [host]}, "file")
