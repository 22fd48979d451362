"""The bytes of the tokens of a `tokenizer.json`, and a tokenizer that changes no text. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from services.common.token_bytes import NESTED, TokenBytes, marks_spaces, parts_of


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
    token_bytes = TokenBytes(spec)
    images = [b""] * (max(ids.values(), default=-1) + 1)
    for token, token_id in ids.items():
        if token not in added:
            images[token_id] = token_bytes.of(token)
        elif added[token]["special"]:
            images[token_id] = token.encode("utf-8", "replace")
        else:
            images[token_id] = token_bytes.of_text(token)
    specials = {name: token["id"] for name, token in added.items() if token["special"]}
    return Pieces(tuple(images), specials, tuple(_lead(spec)), token_bytes.marks_spaces)


def exact_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer with the same tokens that changes no text.

    It normalizes nothing, adds no space before a text and no special tokens, and cuts nothing.
    """
    kept = [part for part in parts_of(spec, "normalizer") if marks_spaces(part)]
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
        key = NESTED["pre_tokenizer"]
        return {**part, key: [_without_prefix(each) for each in part[key]]}
    if part["type"] == "ByteLevel":
        return {**part, "add_prefix_space": False}
    if part["type"] == "Metaspace":
        others = {key: value for key, value in part.items() if key != "add_prefix_space"}
        return {**others, "prepend_scheme": "never"}
    return part


def _lead(spec: Mapping[str, Any]) -> Iterator[int]:
    """Yield the special tokens before the text in the template of single texts."""
    for part in parts_of(spec, "post_processor"):
        if part["type"] != "TemplateProcessing":
            continue
        for item in part["single"]:
            if "SpecialToken" not in item:
                return
            yield from part["special_tokens"][item["SpecialToken"]["id"]]["ids"]
