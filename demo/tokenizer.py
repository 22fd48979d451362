"""The pair's tokenizer: whole words of the corpus, single digits, and bytes for everything else."""

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.corpus import Family, Split, problems
from demo.corpus.auxiliary import repetition, sums
from flyserve.bench.tasks import render

__all__ = [
    "CHAT_TEMPLATE",
    "CONTEXT_LENGTH",
    "END_OF_TEXT",
    "VOCABULARY_SIZE",
    "build_tokenizer",
    "load_tokenizer",
    "render",
    "sample",
    "wrap",
]

VOCABULARY_SIZE = 640
CONTEXT_LENGTH = 1024
END_OF_TEXT = "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{{ '\\n' if message['role'] == 'user' else eos_token }}{% endfor %}"
)
_PIECE = r" ?\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s"
_PROBLEMS_PER_FAMILY = 500
_AUXILIARY_SEQUENCES = 5000


def build_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Build the tokenizer from a sample of the corpus.

    A piece is a word, a digit or a run of punctuation, each with the space before it. Pieces of the
    corpus are one token (`ignore_merges`); any other piece falls apart into bytes, so every text
    survives encoding and decoding. Text is `prompt`, newline, `response`, end of text; there is no
    beginning-of-text token.
    """
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(seed), merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return wrap(tokenizer)


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return a tokenizer as transformers has it, with the pair's end of text and chat template."""
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer saved in a model folder; needs no torch."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    pieces = pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pieces, to_bytes])


def _vocabulary(seed: int) -> dict[str, int]:
    """Number the end of text, the bytes and the words in a sample, in alphabetical order; then fill up."""
    pre_tokenizer = _pre_tokenizer()
    letters = set(pre_tokenizers.ByteLevel.alphabet())
    words = {piece for text in sample(seed) for piece, _ in pre_tokenizer.pre_tokenize_str(text)} - letters
    tokens = [END_OF_TEXT, *sorted(letters), *sorted(words)]
    if len(tokens) > VOCABULARY_SIZE:
        raise ValueError(f"the corpus needs {len(tokens)} tokens, more than {VOCABULARY_SIZE}")
    tokens += [f"<|reserved_{number}|>" for number in range(VOCABULARY_SIZE - len(tokens))]
    return {token: index for index, token in enumerate(tokens)}


def sample(seed: int) -> Iterator[str]:
    """Yield the texts of the corpus that tokenizers are built from."""
    for family in Family:
        source = problems(seed, Split.TRAIN, family)
        for _ in range(_PROBLEMS_PER_FAMILY):
            problem = next(source)
            yield f"{render(problem.prompt)}{problem.response}"
    rng = random.Random(seed)
    for _ in range(_AUXILIARY_SEQUENCES):
        for prompt, response in (repetition(rng), sums(rng)):
            yield f"{render(prompt)}{response}"
