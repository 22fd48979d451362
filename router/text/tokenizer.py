"""The target's tokenizer and its end-of-sequence ids, loaded from the model folder without torch."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fly.errors import ModelError

_ENCODE_INLINE_CHARACTERS = 16_384
_MOST_KEPT = 1 << 17
"""Tokens whose own text is kept: each is decoded behind the one before it, and then by itself."""


class Tokenizer:
    """Text to token ids and back.

    Attributes:
        eos_ids: Tokens that end a response, as the model's generation config has them.
        vocab_size: Token ids lie below this.
        backend: The tokenizer of the library `tokenizers`.
        has_chat_template: It has one of its own.
    """

    def __init__(self, fast: Any, eos_ids: tuple[int, ...]) -> None:
        """Wraps a transformers fast tokenizer."""
        self.eos_ids = eos_ids
        self.vocab_size = len(fast)
        self.has_chat_template = bool(fast.chat_template)
        self._fast = fast
        self.backend = fast.backend_tokenizer
        self._decode_one = lru_cache(_MOST_KEPT)(self._decode)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Reads tokenizer and configs.

        Raises:
            ModelError: The folder or its tokenizer is missing or unusable.
        """
        # NOTE: AutoTokenizer would import torch.
        from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

        if not (folder / "tokenizer.json").is_file():
            raise ModelError(f"{folder}: has no tokenizer.json")
        try:
            fast = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:
            raise ModelError(f"{folder}: the tokenizer cannot be loaded: {_one_line(error)}") from error
        return cls(fast, _eos_ids(folder, fast))

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, with the special tokens that the tokenizer itself adds."""
        return tuple(self._fast.encode(text))

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], template: str | None, variables: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Token ids of a conversation, up to where the model answers.

        Control tokens that a message spells out are text like any other: only the template's own count.

        Args:
            messages: Each with its role and content.
            template: In Jinja; None takes the tokenizer's own.
            variables: Further ones that the template may read.

        Raises:
            Exception: Whatever the template raises.
        """
        return tuple(
            self._fast.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=template,
                add_generation_prompt=True,
                sanitize_control_tokens=True,
                return_dict=False,
                **variables,
            )
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens; bytes that make no character become U+FFFD."""
        return self._decode_one(ids[0]) if len(ids) == 1 else self._decode(*ids)

    def _decode(self, *ids: int) -> str:
        return str(self.backend.decode(ids, skip_special_tokens=True))

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Text of each id by itself, special tokens included."""
        return tuple(self.backend.decode([token], skip_special_tokens=False) for token in ids)


def is_slow_to_encode(text: str) -> bool:
    """Whether a text is so long that tokenizing it would hold up other requests."""
    return len(text) > _ENCODE_INLINE_CHARACTERS


def _eos_ids(folder: Path, fast: Any) -> tuple[int, ...]:
    """From the generation config, else the model's config, else the tokenizer."""
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name).get("eos_token_id")
        if found is not None:
            ids = found if isinstance(found, list) else [found]
            _check_ids(ids, folder / name)
            return tuple(ids)
    return () if fast.eos_token_id is None else (fast.eos_token_id,)


def _check_ids(ids: Sequence[Any], path: Path) -> None:
    for found in ids:
        if type(found) is not int or found < 0:
            raise ModelError(f"{path}: eos_token_id holds {found!r}, must be ids of tokens")


def read_json(path: Path) -> dict[str, Any]:
    """A configuration file's object; empty where there is no such file.

    Raises:
        ModelError: It is not JSON.
    """
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: is not JSON: {_one_line(error)}") from None
    return data if isinstance(data, dict) else {}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
