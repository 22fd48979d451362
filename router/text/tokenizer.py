"""Tokenizer of the target, end-of-sequence ids and sampling defaults: read from its folder without torch."""

import json
import sys
from collections.abc import Sequence
from functools import cached_property, lru_cache
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from flyserve.core.errors import ModelError, one_line
from flyserve.core.request import SamplingParams
from services.common.token_bytes import TokenBytes
from services.common.token_map import read_eos_ids, read_json

_MOST_IMAGES = 65_536
"""Tokens whose bytes are kept."""


class TokenImage(NamedTuple):
    """A token by itself.

    Attributes:
        text: Its text, the name of a special token, or `token_id:` and the id of one without a name. Bytes
            that are no characters have OpenAI's notation: `bytes:`, and each as backslash, x and two digits.
        bytes: Bytes that it adds to a text; None for a special token.
    """

    text: str
    bytes: list[int] | None


class Tokenizer:
    """Text to token ids and back.

    Attributes:
        eos_ids: Tokens that end a response, from the model's generation config.
        vocab_size: Token ids lie below this.
        backend: The tokenizer of the library `tokenizers`.
        image: Function that returns a token by itself, as log-probabilities show it.
        template_arguments: Names that variables of a template must not have: arguments of the renderer.
    """

    def __init__(self, fast: Any, eos_ids: tuple[int, ...]) -> None:
        """Wrap a transformers fast tokenizer."""
        self.eos_ids = eos_ids
        self.vocab_size = len(fast)
        self.template_arguments = signature(fast.apply_chat_template).parameters.keys() - {"kwargs"}
        self._fast = fast
        self.backend = fast.backend_tokenizer
        self.backend.no_truncation()
        self.backend.no_padding()
        self._added = self.backend.get_added_tokens_decoder()
        self.image = lru_cache(_MOST_IMAGES)(self._image)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read the tokenizer and the configs of a model folder; raise ModelError if one is unusable."""
        # NOTE: AutoTokenizer would import torch.
        from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

        if not (folder / "tokenizer.json").is_file():
            raise ModelError(f"{folder}: has no tokenizer.json")
        try:
            fast = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:
            raise ModelError(f"{folder}: the tokenizer cannot be loaded: {one_line(error)}") from error
        eos_ids = read_eos_ids(folder)
        if eos_ids is None:
            eos_ids = () if fast.eos_token_id is None else (fast.eos_token_id,)
        fast.model_max_length = sys.maxsize  # the router checks lengths itself: no warning of a library
        return cls(fast, eos_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the token ids of a prompt, with the special tokens that the tokenizer adds."""
        return tuple(self._fast.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of ids together."""
        return str(self.backend.decode(ids, skip_special_tokens=skip_special_tokens))

    @property
    def chat_template(self) -> str | None:
        """The tokenizer's own chat template; None if it has none, or several by name."""
        found = self._fast.chat_template
        return found if isinstance(found, str) else None

    def template_for(self, has_tools: bool) -> str | None:
        """Return the template that is used with or without tools; None if there is none."""
        found = self._fast.chat_template
        named = found if isinstance(found, dict) else {"default": found}
        template: str | None = (has_tools and named.get("tool_use")) or named.get("default")
        return template

    @property
    def template_variables(self) -> dict[str, Any]:
        """Special tokens by the names under which chat templates write them."""
        return dict(self._fast.special_tokens_map)

    def token_of(self, text: str) -> int | None:
        """Return the id of the token with this name; None if the vocabulary has none."""
        found: int | None = self.backend.token_to_id(text)
        return found

    @property
    def special_tokens(self) -> dict[str, str | None]:
        """Special tokens by the names of the tokenizer's configuration, and the kind of tokenizer."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        return {"tokenizer_class": type(self._fast).__name__, **{n: getattr(self._fast, n) for n in names}}

    def names(self, ids: Sequence[int]) -> list[str]:
        """Return the names of ids in the vocabulary."""
        return [str(name) for name in self._fast.convert_ids_to_tokens(list(ids))]

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each id by itself, special tokens included."""
        return tuple(self.backend.decode([token], skip_special_tokens=False) for token in ids)

    def _image(self, token: int) -> TokenImage:
        """Return a token by itself, whatever is beside it."""
        name, added = self.backend.id_to_token(token), self._added.get(token)
        if name is None:
            return TokenImage(f"token_id:{token}", [])
        if added is not None and added.special:
            return TokenImage(name, None)
        if not self._bytes.are_known:
            text = self.pieces((token,))[0]
            return TokenImage(text, list(text.encode()))
        own = self._bytes.of(name) if added is None else self._bytes.of_text(name)
        try:
            return TokenImage(own.decode(), list(own))
        except UnicodeDecodeError:
            return TokenImage("bytes:" + "".join(f"\\x{each:02x}" for each in own), list(own))

    @cached_property
    def _bytes(self) -> TokenBytes:
        parts = {"decoder": self.backend.decoder, "pre_tokenizer": self.backend.pre_tokenizer}
        return TokenBytes({name: part and json.loads(part.__getstate__()) for name, part in parts.items()})


_OPENAI = SamplingParams(temperature=1.0)
_MOST_DEFAULT = 1e9
"""Largest number that a model's own defaults may have; others, infinite ones among them, are passed over."""


def sampling_defaults(folder: Path) -> SamplingParams:
    """Return the defaults: greedy with `do_sample: false`, else OpenAI's where the config leaves one open."""
    config = read_json(folder / "generation_config.json")
    if config.get("do_sample") is False:
        return SamplingParams()

    def number(name: str, default: float) -> float:
        found = config.get(name)
        if not isinstance(found, int | float) or isinstance(found, bool) or not abs(found) <= _MOST_DEFAULT:
            return default
        return float(found)

    return SamplingParams(
        temperature=number("temperature", _OPENAI.temperature),
        top_k=max(0, int(number("top_k", _OPENAI.top_k))),
        top_p=number("top_p", _OPENAI.top_p),
        min_p=number("min_p", _OPENAI.min_p),
        repetition_penalty=number("repetition_penalty", _OPENAI.repetition_penalty),
    )
