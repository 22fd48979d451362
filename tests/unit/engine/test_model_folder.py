"""Model folders: rejections and their messages, fingerprints, token maps."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flyserve.core.errors import ModelError
from services.common.token_map import num_token_ids, read_token_map, token_map_hash
from services.engine.loading.folder import BackgroundFingerprint, fingerprint
from services.engine.loading.model import load_model
from tests.support.tiny_models import change_config


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(folder: Path, vocab: Any, added: list[dict[str, Any]] | None = None) -> None:
    content = {"model": {"type": "BPE", "vocab": vocab}, "added_tokens": added or []}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def test_loads_in_the_requested_dtype(folder: Path) -> None:
    loaded = load_model(folder, "bfloat16")
    assert loaded.model.dtype is torch.bfloat16
    assert (loaded.architecture, loaded.vocab_size, loaded.context_length) == ("LlamaForCausalLM", 96, 64)
    assert loaded.token_map_hash == ""


def test_the_tokenizer_sets_the_vocabulary(folder: Path) -> None:
    write_tokenizer(folder, {f"t{index}": index for index in range(90)}, [{"id": 90, "content": "<end>"}])
    loaded = load_model(folder, "float32")
    assert loaded.vocab_size == 91 and loaded.token_map_hash == token_map_hash(folder)


def test_a_tokenizer_larger_than_the_embedding_is_rejected(folder: Path) -> None:
    write_tokenizer(folder, {f"t{index}": index for index in range(97)})
    with pytest.raises(ModelError, match="97 ids, the embedding 96 rows"):
        load_model(folder, "float32")


def test_a_missing_folder_an_unknown_dtype_and_a_missing_config(folder: Path) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        load_model(folder / "nowhere", "float32")
    with pytest.raises(ModelError, match="float16"):
        load_model(folder, "float16")
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(folder, "float32")


def test_missing_unexpected_and_misshaped_tensors(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("model.norm.weight"))
    with pytest.raises(ModelError, match=r"missing keys: model\.norm\.weight"):
        load_model(folder, "float32")
    change_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(5)}))
    with pytest.raises(ModelError, match=r"wrong shape: model\.norm\.weight is \[5\], must be \[32\]"):
        load_model(folder, "float32")
    change_weights(
        folder,
        lambda weights: weights.update({"model.norm.weight": torch.ones(32), "odd.weight": torch.ones(1)}),
    )
    with pytest.raises(ModelError, match=r"unexpected keys: odd\.weight"):
        load_model(folder, "float32")


def test_the_fingerprint_follows_weights_and_config(folder: Path) -> None:
    first = load_model(folder, "float32").weight_fingerprint
    assert first == load_model(folder, "bfloat16").weight_fingerprint
    change_weights(folder, lambda weights: weights["model.norm.weight"].add_(1))
    second = load_model(folder, "float32").weight_fingerprint
    change_config(folder, rms_norm_eps=0.1)
    assert len({first, second, load_model(folder, "float32").weight_fingerprint}) == 3


def test_token_maps_are_compared_by_content(tmp_path: Path) -> None:
    assert read_token_map(tmp_path) == {} and token_map_hash(tmp_path) == ""
    hashes = []
    for vocab in ({"a": 0, "b": 1}, {"b": 1, "a": 0}, [["a", -1.0], ["b", -2.0]], {"a": 1, "b": 0}):
        write_tokenizer(tmp_path, vocab)
        hashes.append(token_map_hash(tmp_path))
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]
    write_tokenizer(tmp_path, {"a": 0}, [{"id": 9, "content": "<end>"}])
    assert num_token_ids(read_token_map(tmp_path)) == 10
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(ModelError, match="is not a tokenizer"):
        token_map_hash(tmp_path)


@pytest.mark.parametrize(
    ("vocab", "added"),
    [
        ({"a": 0, "b": "1"}, []),
        ({"a": 0, "b": 1.5}, []),
        ({"a": 0, "b": None}, []),
        ({"a": 0, "b": -1}, []),
        ({"a": 0}, [{"id": [1], "content": "b"}]),
        ({"a": 0}, [{"id": 1, "content": 7}]),
        ("ab", []),
        (7, []),
    ],
)
def test_a_tokenizer_whose_ids_are_no_numbers_is_named(
    folder: Path, vocab: Any, added: list[dict[str, Any]]
) -> None:
    write_tokenizer(folder, vocab, added)
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        load_model(folder, "float32")


def test_the_fingerprint_is_computed_beside_other_work(tmp_path: Path) -> None:
    """A pipe without a writer: a hash that is computed at once would wait for it for ever."""
    pipe = tmp_path / "weights"
    os.mkfifo(pipe)
    with BackgroundFingerprint([pipe]) as found, pipe.open("wb") as writer:
        writer.write(b"weights")
    written = tmp_path / "other" / "weights"
    written.parent.mkdir()
    written.write_bytes(b"weights")
    assert len(found.result()) == len(fingerprint([written])) == 32


def test_a_load_that_fails_ends_the_computation_of_its_fingerprint(tmp_path: Path) -> None:
    endless = tmp_path / "weights"
    endless.symlink_to("/dev/zero")
    with pytest.raises(ZeroDivisionError), BackgroundFingerprint([endless]):
        raise ZeroDivisionError
