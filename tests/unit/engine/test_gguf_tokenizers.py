"""The tokenizer that is made of a GGUF file makes the tokens of libllama, for every supported kind."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.common.gguf.tokenizer import _KINDS
from services.common.model_source import model_folder
from services.engine.llamacpp import library as libllama
from services.engine.llamacpp import tokens
from tests.support.gguf_files import described_llama, spaced_tokenizer, write_gguf

Pair = tuple[Callable[[str], list[int]], Callable[[str], list[int]]]
FIRST = {id(kind): name for name, kind in reversed(_KINDS.items())}.values()
"""The first name of each kind: the others are the same."""
TEXT = st.text(st.sampled_from("abehinort AB01239'.,!(<|>_#é日\n\t\r-😀▁"), max_size=24)


@pytest.fixture(scope="module", params=[*FIRST, "llama", "llama without prefix", "gemma4"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return the two tokenizers of one file, as functions."""
    folder, kind = tmp_path_factory.mktemp("tokenizer"), request.param
    changes: dict[str, Any] = {"tokenizer.ggml.pre": kind}
    if kind not in _KINDS:
        changes = spaced_tokenizer(kind.split()[0], has_prefix=kind == "llama")
    metadata = described_llama(**changes) | {"llama.block_count": 1, "llama.context_length": 64}
    metadata |= {
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
    }
    metadata |= {"llama.attention.layer_norm_rms_epsilon": 1e-5}
    file = write_gguf(folder / "m.gguf", metadata, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        tokenizer = Tokenizer.from_file(str(model_folder(file) / "tokenizer.json"))
    vocabulary = load_vocabulary(file)

    def own(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    return own, lambda text: tokens._tokens(libllama.load_library(), vocabulary, text)


def load_vocabulary(file: Path) -> int:
    library = libllama.load_library()
    params = library.llama_model_default_params()
    params.vocab_only = True
    with libllama.explained() as lines:
        model = library.llama_model_load_from_file(os.fsencode(file), params)
    assert model, lines
    vocabulary: int = library.llama_model_get_vocab(model)
    return vocabulary


def test_the_texts_of_the_check_at_start(pair: Pair) -> None:
    own, theirs = pair
    assert [own(text) for text in tokens._TEXTS] == [theirs(text) for text in tokens._TEXTS]


@settings(max_examples=100)
@example(text="<|im_end|> <|im_start|>x")
@example(text="  the\n\n\n the the   ")
@given(text=TEXT)
def test_any_text(pair: Pair, text: str) -> None:
    own, theirs = pair
    assert own(text) == theirs(text)
