"""GGUF files on llama.cpp: what is refused before it is loaded, and by which name."""

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from services.common.gguf import tokenizer
from services.common.machine.machine import Machine
from services.engine.llamacpp import library, start
from services.engine.llamacpp.start import kv_bytes
from tests.support.gguf_files import byte_level_tokens, described_llama, gguf_of, tiny_mamba, write_gguf
from tests.unit.engine.llamacpp.gguf_rig import NEAR, Load, allocated, expected, file_of, rejection, rows


def test_an_unknown_architecture_is_named(load: Load, tmp_path: Path) -> None:
    metadata = described_llama() | {"general.architecture": "other"}
    file = write_gguf(tmp_path / "other.gguf", metadata, {})
    assert "unknown model architecture: 'other'" in rejection(load, model=file)


def test_a_state_that_cannot_be_rolled_back_is_named(load: Load, tmp_path: Path) -> None:
    found = rejection(load, model=tiny_mamba(tmp_path / "mamba.gguf"))
    assert "its architecture is mamba: its state (Mamba, RWKV) cannot be rolled back" in found


def test_a_cut_file_is_named_at_whatever_byte_it_ends(load: Load, file: Path, tmp_path: Path) -> None:
    content, cut = file.read_bytes(), tmp_path / "cut.gguf"
    for size in (0, 3, 20, 1000, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:size])
        assert str(cut) in rejection(load, model=cut)


def test_lengths_and_memory_are_named(load: Load) -> None:
    assert "max_model_len: is 65, at most 64, the model's context" in rejection(load, max_model_len=65)
    assert "kv_tokens: is 15, must be at least 16" in rejection(load, kv_tokens=15)
    assert "lower kv_tokens, set auto, or use a smaller file" in rejection(load, kv_tokens=10**12)
    assert load(max_model_len=32).info.context_length == 32
    assert load(kv_tokens="auto").info.kv_capacity == 16_384


@pytest.mark.parametrize("kv_tokens", ["auto", 32])
def test_a_file_as_large_as_the_memory_is_refused_before_it_is_loaded(
    load: Load, file: Path, kv_tokens: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "find_machine", lambda: Machine(memory_bytes=file.stat().st_size))
    monkeypatch.setattr(start, "_load", None)
    found = rejection(load, kv_tokens=kv_tokens)
    assert found.startswith(f"kv_tokens: is {16 if kv_tokens == 'auto' else 32}, which take 0.0 GB beside")


def test_an_unknown_memory_limits_nothing(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_machine", Machine)
    assert load(kv_tokens="auto").info.kv_capacity == 16_384


def test_sequences_may_be_more_than_the_rows_of_a_batch(load: Load) -> None:
    """The library would end the process."""
    runner = load(max_sequences=40, max_batch_tokens=64)
    difference = runner.logits([rows(allocated(runner, 16), [3, 14])]) - expected([3, 14])
    assert float(difference.abs().max()) < NEAR


def test_more_sequences_than_the_library_can_have_are_refused(load: Load, tmp_path: Path) -> None:
    most = "max_sequences: is 255, at most 254 with deterministic: true"
    assert rejection(load, max_sequences=255, deterministic=True) == most
    file = file_of("gemma3", tmp_path)
    most = "max_sequences: is 129, at most 128 for a model whose attention has a window"
    assert rejection(load, model=file, max_sequences=129) == most
    runner = load(model=file, max_sequences=128, kv_tokens=2048)
    assert None not in [runner.allocate(16) for _ in range(128)]


def test_a_tokenizer_that_makes_other_tokens_is_refused(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an error of the conversion, or with the tokenizer of another model beside a file."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(byte_level_tokens()), **sizes))
    assert load(model=gguf_of(model, tmp_path / "right.gguf")).info.vocab_size == len(byte_level_tokens())
    changed = {**tokenizer._KINDS, "smollm": tokenizer._Kind(["[a-z]"])}
    monkeypatch.setattr(tokenizer, "_KINDS", changed)
    found = rejection(load, model=gguf_of(model, tmp_path / "wrong.gguf"))
    assert "its tokenizer (tokenizer.ggml.model, pre) is not supported: it makes" in found


def test_a_missing_or_other_library_is_named(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def rejected() -> str:
        library.load_library.cache_clear()
        return rejection(load)

    with monkeypatch.context() as patch:
        patch.setattr(library, "PACKAGE", "no-such-package")
        assert "is not installed here: pip install 'flyserve[llamacpp]'" in rejected()
    with monkeypatch.context() as patch:
        patch.setattr(library.metadata, "version", lambda _: "2030.1.1")
        assert (
            f"xllamacpp 2030.1.1 is installed, this version of FlyServe needs {library.VERSION}" in rejected()
        )
    with monkeypatch.context() as patch:
        patch.setattr(library, "_FUNCTIONS", {**library._FUNCTIONS, "llama_gone": (None, ())})
        assert "it has no llama_gone" in rejected()
    with monkeypatch.context() as patch:
        patch.setattr(library, "_CONTEXT_DEFAULTS", {"n_ctx": 513})
        assert "llama_context_params.n_ctx is 512, must be 513" in rejected()
    library.load_library.cache_clear()


@pytest.mark.parametrize(
    ("metadata", "size"),
    [
        (
            {"block_count": 30, "embedding_length": 576, "attention.head_count": 9}
            | {"attention.head_count_kv": 3},
            23_040,
        ),
        ({"block_count": 2, "embedding_length": 64, "attention.head_count": 4}, 512),
        (
            {"block_count": 2, "embedding_length": 64, "attention.head_count": [4, 8]}
            | {"attention.head_count_kv": [2, 0], "attention.key_length": 16, "attention.value_length": 8},
            96,
        ),
        ({}, 0),
        ({"block_count": "2", "embedding_length": 64, "attention.head_count": 4}, 0),
        ({"block_count": 2, "embedding_length": [64, "64"], "attention.head_count": [4, "4"]}, 0),
        (
            {"block_count": 2, "embedding_length": 64, "attention.head_count": 4}
            | {"attention.head_count_kv": "2", "attention.key_length": [], "attention.value_length": 0.5},
            512,
        ),
    ],
)
def test_the_bytes_of_a_position(metadata: dict[str, Any], size: int) -> None:
    described = {f"llama.{key}": value for key, value in metadata.items()}
    assert kv_bytes({"general.architecture": "llama", **described}) == size
