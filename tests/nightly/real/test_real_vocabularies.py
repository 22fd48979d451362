"""The tokenizers of Gemma 3 and SmolLM2: texts survive both, and streams of both have the same bytes."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.real.texts import BEGINNINGS
from router.text.tokenizer import Tokenizer
from services.drafter.vocabulary.mapping import VocabularyMap
from tests.nightly.real.prompts import PROMPTS
from tests.support.mapped_streams import assert_drafts_continue, assert_updates_keep_bytes, texts_of

pytestmark = pytest.mark.timeout(3600)

EXAMPLES = int(os.environ.get("FLYSERVE_VOCABULARY_TEXTS", "200"))
properties = settings(max_examples=EXAMPLES, deadline=None)
texts = texts_of((*BEGINNINGS, *PROMPTS))

UNWRITABLE = {"gemma": "▁", "folder": "\x04\x06\x13\x14\x16\x1d"}
"""Characters that a tokenizer changes or has no token for, by the fixture of its folder."""
PREFIXES = {"gemma": (2,), "folder": ()}
HELLO_WORLD = {"gemma": [9259, 1902], "folder": [19556, 905]}


@pytest.fixture(scope="module", params=HELLO_WORLD)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(request: pytest.FixtureRequest, name: str) -> Tokenizer:
    return Tokenizer.load(request.getfixturevalue(name))


@pytest.fixture(scope="module", params=["gemma drafts", "smollm2 drafts"])
def mapping(request: pytest.FixtureRequest, gemma: Path, folder: Path) -> VocabularyMap:
    return VocabularyMap.load(*((folder, gemma) if request.param == "gemma drafts" else (gemma, folder)))


def test_it_is_the_tokenizer_of_the_model(tokenizer: Tokenizer, name: str) -> None:
    assert tokenizer.encode("Hello world") == (*PREFIXES[name], *HELLO_WORLD[name])
    # Digits are tokens of their own, and do not take a space from those before them.
    digits = [tokenizer.encode(digit, add_special_tokens=False) for digit in "120"]
    spaces = tokenizer.encode("   ", add_special_tokens=False)
    assert all(len(each) == 1 for each in (*digits, spaces))
    assert tokenizer.encode("   120", add_special_tokens=False) == sum(digits, spaces)


@given(st.one_of(texts, st.text(max_size=80)))
@properties
def test_every_text_survives(tokenizer: Tokenizer, name: str, text: str) -> None:
    text = "".join(
        each for each in text if each not in UNWRITABLE[name] and not 0x40000 <= ord(each) < 0xC0000
    )
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_most_tokens_of_the_drafter_are_the_targets(gemma: Path, folder: Path) -> None:
    assert VocabularyMap.load(gemma, folder).overlap == pytest.approx(0.939, abs=0.001)


@given(texts, texts, st.randoms(use_true_random=False))
@properties
def test_the_streams_have_the_same_bytes_and_drafts_continue_them(
    mapping: VocabularyMap, text: str, other: str, chance: random.Random
) -> None:
    assert_drafts_continue(mapping, text, other, chance)


@given(st.data())
@properties
def test_any_updates_keep_the_bytes_and_settled_tokens(mapping: VocabularyMap, data: st.DataObject) -> None:
    assert_updates_keep_bytes(mapping, texts, data)
