"""The bytes of the tokens of a `tokenizer.json`, and a tokenizer that changes no text. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SPACE = "▁"
"""Character for a space in the tokens of SentencePiece."""

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NESTED = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
"""Key of the parts of a sequence, by kind of part."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The tokens of a vocabulary as bytes.

    Attributes:
        images: Bytes of each token by its id: those that it adds to a text, or the name of a special token;
            empty for an id without a token.
        specials: Ids of the special tokens by their names.
        lead: Special tokens that the tokenizer puts before every text.
        marks_spaces: True if a space has a character of its own, so that this character cannot be written.
    """

    images: tuple[bytes, ...]
    specials: Mapping[str, int]
    lead: tuple[int, ...]
    marks_spaces: bool


def read_pieces(spec: Mapping[str, Any]) -> Pieces:
    """Return the bytes of all tokens of a `tokenizer.json`, given as plain data.

    Raises:
        KeyError, TypeError, ValueError: It is not a tokenizer.
    """
    vocab = spec["model"]["vocab"]
    if isinstance(vocab, list):  # Unigram: [token, score] by id
        vocab = {token: token_id for token_id, (token, _) in enumerate(vocab)}
    added = {token["content"]: token for token in spec.get("added_tokens") or ()}
    ids = {**vocab, **{name: token["id"] for name, token in added.items()}}
    marks_spaces = any(_marks_spaces(part) for part in _parts(spec, "decoder"))
    letters = _byte_letters() if _is_byte_level(spec) else {}
    images = [b""] * (max(ids.values(), default=-1) + 1)
    for token, token_id in ids.items():
        text = token.replace(SPACE, " ") if marks_spaces else token
        if token in added:
            images[token_id] = (token if added[token]["special"] else text).encode("utf-8", "replace")
        elif (found := _BYTE.fullmatch(token)) and not letters:
            images[token_id] = bytes((int(found[1], 16),))
        elif letters and letters.keys() >= set(token):
            images[token_id] = bytes(letters[letter] for letter in token)
        else:
            images[token_id] = text.encode("utf-8", "replace")
    specials = {name: token["id"] for name, token in added.items() if token["special"]}
    return Pieces(tuple(images), specials, tuple(_lead(spec)), marks_spaces)


def exact_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer with the same tokens that changes no text.

    It normalizes nothing, adds no space before a text and no special tokens, and cuts nothing.
    """
    kept = [part for part in _parts(spec, "normalizer") if _marks_spaces(part)]
    return {
        **spec,
        "normalizer": {"type": "Sequence", "normalizers": kept} if kept else None,
        "pre_tokenizer": _without_prefix(spec.get("pre_tokenizer")),
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def _without_prefix(part: Any) -> Any:
    """Return a pre-tokenizer that adds no space before a text."""
    if part is None:
        return None
    if part["type"] == "Sequence":
        key = _NESTED["pre_tokenizer"]
        return {**part, key: [_without_prefix(each) for each in part[key]]}
    if part["type"] == "ByteLevel":
        return {**part, "add_prefix_space": False}
    if part["type"] == "Metaspace":
        others = {key: value for key, value in part.items() if key != "add_prefix_space"}
        return {**others, "prepend_scheme": "never"}
    return part


def _lead(spec: Mapping[str, Any]) -> Iterator[int]:
    """Yield the special tokens before the text in the template of single texts."""
    for part in _parts(spec, "post_processor"):
        if part["type"] != "TemplateProcessing":
            continue
        for item in part["single"]:
            if "SpecialToken" not in item:
                return
            yield from part["special_tokens"][item["SpecialToken"]["id"]]["ids"]


def _is_byte_level(spec: Mapping[str, Any]) -> bool:
    """Return True if each letter of a token stands for a byte."""
    parts = [*_parts(spec, "decoder"), *_parts(spec, "pre_tokenizer")]
    return any(part["type"] == "ByteLevel" for part in parts)


def _marks_spaces(part: Mapping[str, Any]) -> bool:
    """Return True for a part that turns spaces into `SPACE`, or back."""
    if part["type"] == "Replace":
        return SPACE in (part["content"], part["pattern"].get("String"))
    return bool(part["type"] == "Metaspace" and part.get("replacement", SPACE) == SPACE)


def _parts(spec: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """Return the parts of a kind in order, without sequences."""

    def flat(part: Any) -> Iterator[Mapping[str, Any]]:
        if part is not None and part["type"] == "Sequence":
            for each in part[_NESTED[kind]]:
                yield from flat(each)
        elif part is not None:
            yield part

    return list(flat(spec.get(kind)))


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter of byte-level tokens: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
