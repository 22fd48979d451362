"""The tokenizer of a GGUF file in the form of a model folder (`tokenizer.json` and its companions). Pure."""

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, NamedTuple

from flyserve.core.errors import ModelError, cut

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
"""Types of tokens (`tokenizer.ggml.token_type`); others are ordinary."""
_SPACE = "▁"
_MOST_TOKENS = 1 << 21
_MOST_SPLIT_LETTERS = 1 << 30
"""Letters of the two parts of each token at each place, in which merges are found: squares of lengths."""

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_QWEN35 = _QWEN2.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+CONTRACTED|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*CONTRACTED"
    r"|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_TEKKEN = _CASED.replace("CONTRACTED", "").replace("DIGITS", "")
_GPT4O = _CASED.replace("CONTRACTED", f"{_CONTRACTIONS}?").replace("DIGITS", "{1,3}")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


class _Kind(NamedTuple):
    """A way of dividing a text before its merges.

    Attributes:
        patterns: Each divides the parts that the one before has left.
        is_whole: A part that is a token is not merged.
        adds_bos: Texts begin with the token for their beginning unless the file says otherwise.
    """

    patterns: Sequence[str]
    is_whole: bool = False
    adds_bos: bool = False


_KINDS: Mapping[str, _Kind] = {
    name: kind
    for names, kind in (
        ("default", _Kind(_DEFAULT)),
        ("gpt-2 phi-2 olmo mpt jais trillion granite-docling exaone4 mellum gigachat", _Kind([_GPT2])),
        ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", _Kind([r"\p{N}", _GPT2])),
        (
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
            _Kind([_LLAMA3], is_whole=True, adds_bos=True),
        ),
        ("dbrx smaug-bpe glm4 chatglm-bpe", _Kind([_LLAMA3])),
        ("qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2", _Kind([_QWEN2])),
        ("qwen35", _Kind([_QWEN35])),
        ("tekken", _Kind([_TEKKEN], is_whole=True, adds_bos=True)),
        ("gpt-4o llama4 kanana2 minimax-m2", _Kind([_GPT4O])),
        ("deepseek-v3 hunyuan-dense joyai-llm", _Kind(_DEEPSEEK3)),
    )
    for name in names.split()
}
"""Kinds of byte-level tokenizers by `tokenizer.ggml.pre`."""

_ENDINGS = frozenset(
    [
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|eom_id|>"),
        *("<|end_of_text|>", "<|return|>", "<|call|>", "<EOT>", "<end_of_utterance>"),
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    ]
)
"""Control tokens that end a response, whatever else a file names."""
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Keys below `general.sampling` by their names in a generation config."""


def model_files(metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the files of a model folder without weights, by name.

    Raises:
        ModelError: The tokenizer is of a kind that this form cannot express; the message begins with a key.
    """
    vocabulary = _Vocabulary(metadata)
    endings = vocabulary.ending_ids()
    sampling = {
        name: metadata[f"general.sampling.{key}"]
        for key, name in _SAMPLING.items()
        if f"general.sampling.{key}" in metadata
    }
    return {
        "tokenizer.json": vocabulary.spec(),
        "tokenizer_config.json": vocabulary.companion(),
        "generation_config.json": {"eos_token_id": endings, **sampling} if endings else sampling,
    }


class _Vocabulary:
    """The tokens of a file, without those that only fill the rows of the embedding."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._model, pre = self._get("model", ""), self._get("pre", "default")
        self._kind = _Kind((), adds_bos=True) if self._is_spaced else _KINDS.get(pre)
        if self._model not in ("gpt2", "llama", "gemma4"):
            raise ModelError(f"tokenizer.ggml.model: is {self._model!r}, must be gpt2, llama or gemma4")
        if self._kind is None:
            raise ModelError(f"tokenizer.ggml.pre: is {pre!r}, must be one of {', '.join(sorted(_KINDS))}")
        tokens, types = self._list("tokens", str), self._list("token_type", int)
        if not 0 < len(tokens) <= _MOST_TOKENS:
            raise ModelError(
                f"tokenizer.ggml.tokens: has {len(tokens)} tokens, must have 1 to {_MOST_TOKENS}"
            )
        self._types = types if len(types) == len(tokens) else [1] * len(tokens)
        self._tokens = {
            number: token
            for number, (token, type_) in enumerate(zip(tokens, self._types, strict=True))
            if type_ != _UNUSED or token != f"[PAD{number}]"
        }

    @property
    def _is_spaced(self) -> bool:
        """True if spaces are written as a letter of their own, and bytes as tokens of their own."""
        return self._model in ("llama", "gemma4")

    def spec(self) -> dict[str, Any]:
        """Return the content of `tokenizer.json`."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": list(self._added()),
            **(self._spaced() if self._is_spaced else self._byte_level()),
            "post_processor": self._template(),
            "model": {
                "type": "BPE",
                "unk_token": self._tokens.get(self._get("unknown_token_id", 0)) if self._is_spaced else None,
                "fuse_unk": self._is_spaced,
                "byte_fallback": self._is_spaced,
                "ignore_merges": self._kind is not None and self._kind.is_whole,
                "vocab": {token: number for number, token in self._tokens.items()},
                "merges": self._merges(),
            },
        }

    def companion(self) -> dict[str, Any]:
        """Return the content of `tokenizer_config.json`."""
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        found = {name: self._tokens.get(self._get(f"{key}_token_id", -1)) for name, key in names.items()}
        templates = {
            key.removeprefix("tokenizer.chat_template").removeprefix(".") or "default": value
            for key, value in self._metadata.items()
            if key.startswith("tokenizer.chat_template") and isinstance(value, str)
        }
        named: Any = [{"name": name, "template": template} for name, template in templates.items()]
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{f"{name}_token": token for name, token in found.items() if token is not None},
            **({"chat_template": named if len(named) > 1 else named[0]["template"]} if named else {}),
        }

    def ending_ids(self) -> list[int]:
        """Return the ids that end a response: those that the file names, and well-known ones."""
        named = [self._get(f"{name}_token_id", -1) for name in ("eos", "eot", "eom")]
        known = [number for number, token in self._tokens.items() if token in _ENDINGS]
        return [*dict.fromkeys(number for number in (*named, *known) if number in self._tokens)]

    def _added(self) -> Iterator[dict[str, Any]]:
        """Yield the tokens that are found in a text before it is divided."""
        for number, token in self._tokens.items():
            if self._types[number] in (_UNKNOWN, _CONTROL, _USER_DEFINED) or token in _ENDINGS:
                yield {
                    "id": number,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": self._types[number] != _USER_DEFINED,
                }

    def _byte_level(self) -> dict[str, Any]:
        assert self._kind is not None
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
        parts = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self._kind.patterns
        ]
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [*parts, byte_level]}
        return {"normalizer": None, "pre_tokenizer": pre_tokenizer, "decoder": byte_level}

    def _spaced(self) -> dict[str, Any]:
        begins = [{"type": "Prepend", "prepend": _SPACE}] if self._has_prefix else []
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
        stripped = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if self._has_prefix else []
        lines = {"type": "Split", "pattern": {"Regex": r"\n+"}, "behavior": "Isolated", "invert": False}
        return {
            "normalizer": {"type": "Sequence", "normalizers": [*begins, spaces]},
            "pre_tokenizer": lines if self._model == "gemma4" else None,
            "decoder": {
                "type": "Sequence",
                "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *stripped],
            },
        }

    @property
    def _has_prefix(self) -> bool:
        return bool(self._get("add_space_prefix", self._model == "llama"))

    def _template(self) -> dict[str, Any]:
        """Return the processor that adds the tokens for the beginning and the end of a text."""
        assert self._kind is not None
        ids = {name: self._get(f"{name}_token_id", -1) for name in ("bos", "eos")}
        adds = {
            "bos": self._get("add_bos_token", self._kind.adds_bos),
            "eos": self._get("add_eos_token", False),
        }
        ids = {name: number for name, number in ids.items() if adds[name] and number in self._tokens}
        parts = {
            name: {"SpecialToken": {"id": self._tokens[number], "type_id": 0}} for name, number in ids.items()
        }
        sequences = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
        begin, end = ([parts[name]] if name in parts else [] for name in ("bos", "eos"))
        return {
            "type": "TemplateProcessing",
            "single": [*begin, sequences[0], *end],
            "pair": [*begin, sequences[0], *end, *begin, sequences[1], *end],
            "special_tokens": {
                self._tokens[number]: {
                    "id": self._tokens[number],
                    "ids": [number],
                    "tokens": [self._tokens[number]],
                }
                for number in ids.values()
            },
        }

    def _merges(self) -> list[list[str]]:
        if self._model == "llama":
            return list(self._merges_by_score())
        found = ((merge, merge.find(" ", 1)) for merge in self._list("merges", str))
        return [[merge[:place], merge[place + 1 :]] for merge, place in found if place > 0]

    def _merges_by_score(self) -> Iterator[list[str]]:
        """Yield the merges of a tokenizer that has scores: of two that are possible, the better token's."""
        scores = self._list("scores", int | float)
        ordinary = {
            token: number
            for number, token in self._tokens.items()
            if self._types[number] not in (_UNKNOWN, _CONTROL, _BYTE) and number < len(scores)
        }
        if sum(len(token) ** 2 for token in ordinary) > _MOST_SPLIT_LETTERS:
            raise ModelError(
                f"tokenizer.ggml.tokens: has tokens of up to {max(map(len, ordinary))} letters, the squares"
                f" of all lengths may add up to at most {_MOST_SPLIT_LETTERS}"
            )
        for token in sorted(ordinary, key=lambda token: -scores[ordinary[token]]):
            for place in range(1, len(token)):
                left, right = token[:place], token[place:]
                if left in ordinary and right in ordinary:
                    yield [left, right]

    def _get(self, name: str, default: Any) -> Any:
        """Return the value of a key; the default if it is absent, or of another type."""
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        return value if isinstance(value, type(default)) else default

    def _list(self, name: str, type_: type | UnionType) -> list[Any]:
        """Return the values of a key, none if it is absent.

        Raises:
            ModelError: A value is of another type.
        """
        values: list[Any] = self._get(name, [])
        if (other := next((each for each in values if not isinstance(each, type_)), None)) is not None:
            kind = "texts" if type_ is str else "numbers"
            raise ModelError(f"tokenizer.ggml.{name}: holds {cut(repr(other), 60)}, must hold {kind}")
        return values
