"""Small vocabularies of the usual kinds, and the maps between them."""

import json
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from services.drafter.vocabulary.mapping import VocabularyMap
from services.drafter.vocabulary.pieces import read_pieces
from services.drafter.vocabulary.vocabulary import Vocabulary

TEXTS = [
    "The cat sat on the mat, and the other cats sat there too. 1234 + 56 = 1290\n\tdef main(): return 0\n",
    "Der Hund läuft über die Straße; naïve façade, café. 日本語のテキスト, русский текст 🙂🙃 e\u0301",
]


def byte_level(size: int, lead: bool = False, normalizer: Any = None) -> dict[str, Any]:
    """Return a byte-level BPE, as GPT-2 and Llama 3 have one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    names = ["<|end|>", "<|user|>", "<|begin|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    if lead:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 2)]
        )
    return dict(json.loads(tokenizer.to_str()))


def sentence_piece(size: int) -> dict[str, Any]:
    """Return a BPE with byte fallback and a space before the text, as Llama 2 and Gemma have one."""
    names = ["<unk>", "<s>", "</s>"]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(
        TEXTS * 4, trainers.BpeTrainer(vocab_size=size, special_tokens=names, show_progress=False)
    )
    spec = json.loads(trained.to_str())
    old = spec["model"]["vocab"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    order = [*names, *fallback, *sorted((t for t in old if t not in names), key=old.__getitem__)]
    spec["model"] |= {"vocab": {t: i for i, t in enumerate(order)}, "byte_fallback": True, "fuse_unk": True}
    spec["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    spec["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_tokens([AddedToken("  ", normalized=False)])
    return dict(json.loads(tokenizer.to_str()))


def without_bytes(spec: dict[str, Any], missing: bytes) -> dict[str, Any]:
    """Return a byte-level BPE without tokens for some bytes, as SmolLM2 has one."""
    images, model = read_pieces(spec).images, spec["model"]
    old = model["vocab"]
    kept = [token for token in sorted(old, key=old.__getitem__) if not set(images[old[token]]) & set(missing)]
    merges = [merge for merge in model["merges"] if "".join(merge) in kept]
    changed = {**model, "vocab": {token: i for i, token in enumerate(kept)}, "merges": merges}
    return {**spec, "model": changed}


VOCABULARIES = {
    "small": Vocabulary(byte_level(300), "small"),
    "large": Vocabulary(byte_level(700, lead=True, normalizer=normalizers.NFC()), "large"),
    "pieces": Vocabulary(sentence_piece(400), "pieces"),
}
MISSING = b"\x00\x04\r\xc0\xf1\xf4\xff"
"""Bytes that the vocabulary `partial` has no tokens for."""
PARTIAL = Vocabulary(without_bytes(byte_level(400), MISSING), "partial")
ENDS = {"small": (0,), "large": (0,), "pieces": (2,)}
PAIRS = {
    (one, other): VocabularyMap(VOCABULARIES[one], VOCABULARIES[other], ENDS[one], ENDS[other])
    for one in VOCABULARIES
    for other in VOCABULARIES
    if one != other
}
PAIRS["pieces", "partial"] = VocabularyMap(VOCABULARIES["pieces"], PARTIAL, ENDS["pieces"], (0,))
PAIRS["large", "partial"] = VocabularyMap(VOCABULARIES["large"], PARTIAL, ENDS["large"], (0,))
