"""The model folder's tokenizer and its end-of-sequence ids."""

import json
from pathlib import Path

import pytest

from flyserve.core.errors import ModelError
from router.text.tokenizer import Tokenizer
from tests.contract.fakes import save_tokenizer


def test_text_comes_back(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path))
    text = "the quick 😀 你好"
    ids = tokenizer.encode(text)
    assert tokenizer.backend.decode(ids) == text and max(ids) < tokenizer.vocab_size
    assert tokenizer.backend.decode((*ids, 0)) == text and tokenizer.pieces((0,)) == ("<eos>",)


def test_several_ends_come_from_the_generation_config(tmp_path: Path) -> None:
    assert Tokenizer.load(save_tokenizer(tmp_path, (1, 0))).eos_ids == (1, 0)


def test_without_a_generation_config_the_models_config_counts(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    assert Tokenizer.load(tmp_path).eos_ids == (0,)
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    assert Tokenizer.load(tmp_path).eos_ids == (1,)


def test_a_folder_without_or_with_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=str(tmp_path)):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("value", ['"abc"', '[0, "x"]', "-1", "true", "{}"])
def test_end_ids_that_are_no_ids_are_rejected(tmp_path: Path, value: str) -> None:
    folder = save_tokenizer(tmp_path)
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {value}}}')
    with pytest.raises(ModelError, match=r"generation_config\.json: eos_token_id holds"):
        Tokenizer.load(folder)
