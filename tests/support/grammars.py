"""Followers of grammars over the demo pair's tokenizer."""

import json
from functools import cache
from typing import Any

import numpy as np

from services.common.grammars.follower import GrammarFollower, Mask
from services.common.grammars.library import compile_grammar, load_tokenizer
from tests.support.processes import TARGET_MODEL

END = 0
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = json.dumps({"grammars": [{"json_schema": SCHEMA}]})
_NAMES = range(2500)
TOO_WIDE_AFTER_AA = "\n".join(
    ['start: "aa" w | "ab"', "w: " + " | ".join(f"w{n}" for n in _NAMES), *(f'w{n}: "{n}"' for n in _NAMES)]
)
"""A grammar in Lark notation that exceeds the library's items of a row after one of its beginnings."""


@cache
def tokenizer(vocab_size: int = 640) -> Any:
    return load_tokenizer((TARGET_MODEL / "tokenizer.json").read_text(encoding="utf-8"), vocab_size)


def follower(form: str = FORM) -> GrammarFollower:
    return GrammarFollower(compile_grammar(tokenizer(), form), 640, tokenizer().eos_tokens)


def allowed(mask: Mask) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def encoded(text: str) -> list[int]:
    return list(tokenizer().tokenize_str(text))


class LocalGrammar:
    """A grammar that is compiled in this process."""

    def __init__(self, form: str = FORM, vocab_size: int = 640) -> None:
        self._matcher = compile_grammar(tokenizer(vocab_size), form)
        self._vocab_size = vocab_size

    def follower(self) -> GrammarFollower:
        return GrammarFollower(self._matcher.deep_copy(), self._vocab_size, tokenizer().eos_tokens)
