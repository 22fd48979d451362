"""The tokenizer of the foreign drafter: another vocabulary that spells the same texts."""

from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.foreign_tokenizer import FOREIGN_VOCABULARY_SIZE, build_foreign_tokenizer
from demo.tasks import load_tasks
from demo.tokenizer import build_tokenizer

_tokenizer = cache(build_foreign_tokenizer)


@given(st.text())
def test_every_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = _tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_it_learns_the_same_tokens_every_time() -> None:
    again = build_foreign_tokenizer()
    assert again.backend_tokenizer.to_str() == _tokenizer().backend_tokenizer.to_str()
    assert len(again) == FOREIGN_VOCABULARY_SIZE


def test_it_cuts_texts_of_the_corpus_in_other_places() -> None:
    own, foreign = build_tokenizer(), _tokenizer()
    for task in load_tasks(12):
        assert _pieces(own, task.prompt) != _pieces(foreign, task.prompt)


def _pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).tokens)
