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


@cache
def tokenizer() -> Any:
    return load_tokenizer((TARGET_MODEL / "tokenizer.json").read_text(encoding="utf-8"), 640)


def follower(form: str = FORM) -> GrammarFollower:
    return GrammarFollower(compile_grammar(tokenizer(), form), 640, tokenizer().eos_tokens)


def allowed(mask: Mask) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def encoded(text: str) -> list[int]:
    return list(tokenizer().tokenize_str(text))
