"""Small tokenizers of the usual kinds, with the control tokens that the chat templates of the tests write."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from tests.support.vocabularies import byte_level, sentence_piece

BOS, EOS = "<|begin|>", "<|end|>"
SPECIAL = (
    *(BOS, EOS, "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[gMASK]", "<sop>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<｜User｜>", "<｜Assistant｜>"),  # noqa: RUF001
)
ADDED = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    *("<|tool|>", "<|fim_middle|>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),  # noqa: RUF001
)
"""Control tokens that are not special, as `<tool_call>` is in Qwen's vocabularies."""
WORDS = ("aspirin", "   ", "<table>")
"""Added tokens of ordinary text."""


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer.from_str(json.dumps(byte_level(400)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def _normalizing() -> Tokenizer:
    return Tokenizer.from_str(json.dumps(byte_level(400, normalizer=normalizers.NFKC())))


def _pieces() -> Tokenizer:
    return Tokenizer.from_str(json.dumps(sentence_piece(400)))


def _words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "user": 1, "assistant": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>"])
    return tokenizer


KINDS = {"bytes": _byte_level, "normalizing": _normalizing, "pieces": _pieces, "words": _words}


def chat_tokenizer(kind: str, special: Sequence[Any] = SPECIAL, added: Sequence[str] = ADDED) -> Any:
    """Return a tokenizer of transformers."""
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens(list(special))
    is_normalized = kind == "normalizing"
    tokenizer.add_tokens([AddedToken(text, normalized=is_normalized) for text in (*added, *WORDS)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)
