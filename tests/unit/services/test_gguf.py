"""GGUF files without their weights: the header, however damaged, and the tokenizer that a router reads."""

import itertools
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import ModelError
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer, sampling_defaults
from services.common.gguf.header import gguf_parts, read_header, streamed_header
from services.common.gguf.tokenizer import model_files
from services.common.model_source import model_folder, model_name
from services.common.token_map import read_eos_ids, token_map_hash
from tests.support.gguf_files import byte_level_tokenizer, byte_level_tokens, described_llama, write_gguf

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "a.number": -7,
    "a.fraction": 0.5,
    "a.truth": True,
    "a.list": [1, 2, 3],
    "texts": ["one", "", "drei ÄÖ"],
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("header") / "m.gguf", METADATA, {}).read_bytes()


def described(path: Path, **changes: Any) -> Path:
    """Write a file that is whole but for its weights."""
    return write_gguf(path, described_llama(**changes), {})


def test_a_header_has_values_of_every_kind(tmp_path: Path) -> None:
    assert read_header(write_gguf(tmp_path / "m.gguf", METADATA, {})) == METADATA


@given(data=st.data())
def test_a_damaged_header_is_always_named(
    data: st.DataObject, header: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A cut anywhere, and any bytes in the place of others: a value, or one error with the file."""
    end = data.draw(st.integers(0, len(header)))
    place = data.draw(st.integers(0, len(header)))
    junk = data.draw(st.binary(max_size=12))
    file = tmp_path_factory.mktemp("damaged") / "m.gguf"
    file.write_bytes((header[:place] + junk + header[place + len(junk) :])[:end])
    try:
        read_header(file)
    except ModelError as error:
        assert str(file) in str(error) and "\n" not in str(error)
        with pytest.raises(ModelError, match=r"damaged or incomplete|is not a GGUF"):
            streamed_header("m", [file.read_bytes()])


@pytest.mark.parametrize("first", [16, 64, 1 << 20])
@given(data=st.data())
def test_a_header_in_chunks_is_the_same_and_ends_the_download(
    data: st.DataObject, header: bytes, first: int
) -> None:
    """The file goes on for ever, as one with large weights does; its header is of three or four chunks."""
    size = data.draw(st.integers(len(header) // 4, len(header)))
    whole = header + bytes(1 << 20)
    taken: list[int] = []

    def chunks() -> Iterator[bytes]:
        for start in itertools.count(0, size):
            taken.append(start)
            yield whole[start : start + size] or bytes(size)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("services.common.gguf.header._FIRST_BYTES", first)
        assert streamed_header("m", chunks()) == METADATA
    assert taken[-1] <= 2 * max(len(header), first)


def test_a_stream_that_has_no_end_of_a_header_is_ended() -> None:
    begin = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**27)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("services.common.gguf.header._MOST_BYTES", 1 << 24)
        with pytest.raises(ModelError, match="more than the file holds"):
            streamed_header("m", itertools.chain([begin], itertools.repeat(bytes(1 << 20))))


def with_list(file: Path, kind: int, number: int, num_bytes: int) -> Path:
    """Write a header with one list, whose values are zeros."""
    begin = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q4sIIQ", 4, b"list", 9, kind, number)
    file.write_bytes(begin)
    os.truncate(file, len(begin) + num_bytes)
    return file


@pytest.mark.parametrize(
    ("kind", "number", "message"),
    [
        (0, 1 << 27, "its lists have more than 8388608 values"),
        (8, 1 << 24, "its lists have more than 8388608 values"),
        (12, 1 << 26, f"it has a list of {1 << 26} values, more than the file holds"),
    ],
)
def test_a_list_that_would_take_gigabytes_is_refused(
    tmp_path: Path, kind: int, number: int, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read_header(with_list(tmp_path / "m.gguf", kind, number, 1 << 30))


def test_a_count_is_not_believed_because_weights_follow(tmp_path: Path) -> None:
    file = with_list(tmp_path / "m.gguf", 0, 1 << 20, 2 << 20)
    assert len(read_header(file)["list"]) == 1 << 20
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("services.common.gguf.header._MOST_BYTES", 1 << 16)
        with pytest.raises(ModelError, match="more than the file holds"):
            read_header(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04 a zip", "is not a GGUF file"),
        (b"GGUF", "it ends within its header"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "its version is 1, must be one of (2, 3)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), f"a list of {2**60} values, more than the file holds"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QI", 0, 77), "of the unknown type 77"),
    ],
)
def test_what_is_no_header_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_header(file)
    assert message in str(caught.value) and str(file) in str(caught.value)


def test_a_model_in_parts_is_named_by_the_first_and_needs_all(tmp_path: Path) -> None:
    names = [f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    for name in names:
        (tmp_path / name).touch()
    assert [part.name for part in gguf_parts(tmp_path / names[0])] == names
    with pytest.raises(ModelError, match="name the first one, m-00001"):
        gguf_parts(tmp_path / names[1])
    (tmp_path / names[2]).unlink()
    with pytest.raises(ModelError, match="lacks parts of the model: m-00003"):
        gguf_parts(tmp_path / names[0])


def test_a_router_reads_tokenizer_template_and_defaults_from_the_file(tmp_path: Path) -> None:
    sampling = {"general.sampling.temp": 0.25, "general.sampling.top_k": 7}
    file = described(tmp_path / "model.gguf", **sampling)
    folder, tokens = model_folder(file), byte_level_tokens()
    tokenizer = Tokenizer.load(folder)
    assert model_name(file) == "model" and tokenizer.vocab_size == len(tokens)
    text = "The  other 1234 things,\n\nwon't he? Ä 日"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
    assert tokenizer.names(tokenizer.encode(" the 12")) == ["Ġthe", "Ġ", "1", "2"]  # of the kind smollm
    assert tokenizer.eos_ids == (tokens.index("<|im_end|>"), tokens.index("<|endoftext|>"))
    rendered = ChatTemplate(tokenizer).render([{"role": "user", "content": "Hi<|im_end|>"}], {})
    assert rendered[0] == tokens.index("<|im_start|>")
    assert rendered.count(tokens.index("<|im_end|>")) == 1  # the client's is text
    defaults = sampling_defaults(folder)
    assert (defaults.temperature, defaults.top_k) == (0.25, 7)


def test_the_folder_is_made_once_and_again_for_another_file(tmp_path: Path) -> None:
    file = described(tmp_path / "model.gguf")
    folder = model_folder(file)
    (folder / "tokenizer.json").touch()
    made = (folder / "tokenizer.json").stat().st_mtime_ns
    assert model_folder(file) == folder and (folder / "tokenizer.json").stat().st_mtime_ns == made
    described(file, **{"tokenizer.chat_template": "other"})
    os.utime(file, ns=(1, 1))
    assert model_folder(file) != folder
    assert ChatTemplate(Tokenizer.load(model_folder(file))).source == "other"


def test_the_rows_that_pad_an_embedding_are_no_tokens(tmp_path: Path) -> None:
    """Two sizes of one family, whose embeddings are padded to other sizes, have one vocabulary."""
    tokens = byte_level_tokens()
    plain = described(tmp_path / "plain.gguf")
    padded = [*tokens, *(f"[PAD{number}]" for number in range(len(tokens), len(tokens) + 5))]
    types = [*byte_level_tokenizer(tokens)["tokenizer.ggml.token_type"], *[5] * 5]
    changed = {"tokenizer.ggml.tokens": padded, "tokenizer.ggml.token_type": types}
    other = write_gguf(tmp_path / "padded.gguf", {**read_header(plain), **changed}, {})
    assert token_map_hash(model_folder(plain)) == token_map_hash(model_folder(other)) != ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.pre": "kimi-k2"}, "tokenizer.ggml.pre: is 'kimi-k2', must be one of"),
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model: is 'rwkv', must be gpt2, llama or gemma4"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model: is ''"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens: has 0 tokens"),
        ({"tokenizer.ggml.tokens": 7}, "tokenizer.ggml.tokens: has 0 tokens"),
        ({"tokenizer.ggml.tokens": [7, 8]}, "tokenizer.ggml.tokens: holds 7, must hold texts"),
        ({"tokenizer.ggml.token_type": ["1"]}, "tokenizer.ggml.token_type: holds '1', must hold numbers"),
        ({"tokenizer.ggml.merges": [7, 8]}, "tokenizer.ggml.merges: holds 7, must hold texts"),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5]}
            | {"tokenizer.ggml.tokens": ["x" * (1 << 20)]},
            "tokenizer.ggml.tokens: has tokens of up to 1048576 letters, the squares of all lengths",
        ),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": ["x" * 99]},
            f"tokenizer.ggml.scores: holds '{'x' * 56}..., must hold numbers",
        ),
    ],
)
def test_an_unsupported_tokenizer_is_named_unless_the_models_own_is_there(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    metadata = {"general.architecture": "llama", **byte_level_tokenizer(byte_level_tokens()), **changes}
    kept = {key: value for key, value in metadata.items() if value is not None}
    file = write_gguf(tmp_path / "m.gguf", kept, {})
    with pytest.raises(ModelError) as caught:
        model_folder(file)
    assert message in str(caught.value) and str(file) in str(caught.value)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert model_folder(file) == tmp_path


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    (cache / "file").touch()
    with pytest.raises(ModelError, match=r"cannot be written \(XDG_CACHE_HOME, HOME\)"):
        model_folder(described(tmp_path / "model.gguf"))


def test_every_end_of_a_response_is_known(tmp_path: Path) -> None:
    tokens = ["a", "<s>", "</s>", "<end_of_turn>", "<|eom_id|>"]
    named = {"eos_token_id": 2, "eom_token_id": 4, "eot_token_id": 9}
    metadata = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": [1, 3, 3, 3, 3], **named}
    files = model_files({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
    (tmp_path / "generation_config.json").write_text(json.dumps(files["generation_config.json"]))
    assert read_eos_ids(tmp_path) == (2, 4, 3)
