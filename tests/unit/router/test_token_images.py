"""Tokens by themselves: their bytes and names, for each kind of vocabulary."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from router.text.tokenizer import TokenImage, Tokenizer
from tests.contract.fakes import save_tokenizer


def tokenizer(model: models.Model, decoder: decoders.Decoder, pre_tokenizer: object = None) -> Tokenizer:
    backend = Backend(model)
    backend.decoder = decoder
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    backend.add_tokens([AddedToken("<call>", special=False)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), ())


BYTES = tokenizer(
    models.BPE({"a": 0, "\u0120b": 1, "\u00f0\u0141": 2, "\u0132": 3}, []),
    decoders.ByteLevel(),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
)
PIECES = tokenizer(
    models.BPE({"a": 0, "\u2581b": 1, "<0xF0>": 2, "<0x9F>": 3}, [], byte_fallback=True),
    decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]),
)
WORDS = tokenizer(models.WordLevel({"a": 0, "b": 1, "##c": 2, "d": 3}, "a"), decoders.WordPiece())


@pytest.mark.parametrize(
    ("of", "images"),
    [
        (BYTES, [("a", b"a"), (" b", b" b"), (r"bytes:\xf0\x9f", b"\xf0\x9f"), (r"bytes:\x90", b"\x90")]),
        (PIECES, [("a", b"a"), (" b", b" b"), (r"bytes:\xf0", b"\xf0"), (r"bytes:\x9f", b"\x9f")]),
        (WORDS, [("a", b"a"), ("b", b"b"), ("##c", b"##c"), ("d", b"d")]),
    ],
)
def test_a_token_has_the_bytes_that_it_adds(of: Tokenizer, images: list[tuple[str, bytes]]) -> None:
    assert [of.image(token) for token in range(4)] == [TokenImage(name, list(own)) for name, own in images]
    assert of.image(4) == TokenImage("<end>", None)
    assert of.image(5) == TokenImage("<call>", list(b"<call>"))
    assert of.image(9) == TokenImage("token_id:9", [])


def test_the_bytes_of_a_text_join_to_it(tmp_path: Path) -> None:
    own = Tokenizer.load(save_tokenizer(tmp_path))
    text = "the \U0001f469\u200d\U0001f467 says \u4f60\u597d, e\u0301"
    found = [own.image(token).bytes for token in own.encode(text)]
    assert bytes(byte for each in found for byte in each or ()).decode() == text
