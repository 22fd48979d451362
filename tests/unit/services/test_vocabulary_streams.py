"""Two vocabularies over random Unicode: the streams have the same bytes, and drafts continue them."""

import json
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from flyserve.core.errors import ModelError
from services.drafter.vocabulary.mapping import VocabularyMap
from services.drafter.vocabulary.spelling import LOOKBACK, complete_length
from services.drafter.vocabulary.streams import TokenStreams
from services.drafter.vocabulary.vocabulary import Vocabulary
from tests.support.mapped_streams import (
    assert_drafts_continue,
    assert_updates_keep_bytes,
    set_to,
    spelled,
    texts_of,
)
from tests.support.vocabularies import PAIRS, TEXTS, VOCABULARIES

EXAMPLES = max(1, int(os.environ.get("FLYSERVE_VOCABULARY_TEXTS", "360")) // len(PAIRS))

texts = texts_of(TEXTS)


@given(st.one_of(texts, st.text(max_size=80)))
@settings(max_examples=EXAMPLES, deadline=None)
def test_bytes_survive_every_vocabulary_at_every_cut(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    for vocabulary in VOCABULARIES.values():
        for cut in range(len(data) + 1):
            ids = vocabulary.encode(data[:cut])
            assert b"".join(vocabulary.images[token] for token in ids) == data[:cut]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@given(texts, texts, st.randoms(use_true_random=False))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_streams_have_the_same_bytes_and_drafts_continue_them(
    pair: tuple[str, str], text: str, other: str, chance: random.Random
) -> None:
    assert_drafts_continue(PAIRS[pair], text, other, chance)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@given(st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_updates_keep_the_bytes_and_settled_tokens(pair: tuple[str, str], data: st.DataObject) -> None:
    assert_updates_keep_bytes(PAIRS[pair], texts, data)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_only_a_bounded_tail_is_tokenized_again(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = PAIRS[pair]
    streams = TokenStreams(mapping)
    prompt = mapping.target.encode((TEXTS[0] * 200).encode())
    set_to(streams, 1, 0, prompt, len(prompt))
    sizes = list[int]()
    encode = Vocabulary.encode

    def counted(self: Vocabulary, data: bytes | bytearray) -> list[int]:
        sizes.append(len(data))
        return encode(self, data)

    monkeypatch.setattr(Vocabulary, "encode", counted)
    added = mapping.target.encode(b" the cat sat")
    set_to(streams, 2, len(prompt), added, len(prompt))
    longest = max(map(len, mapping.drafter.images))
    assert 0 < sum(sizes) <= 2 * (LOOKBACK + longest + len(b" the cat sat"))


def test_a_confirmed_draft_keeps_the_drafters_own_tokens() -> None:
    mapping = PAIRS["small", "large"]
    streams = TokenStreams(mapping)
    prompt = mapping.target.encode(b"The cat")
    set_to(streams, 1, 0, prompt, len(prompt))
    own = [*streams.drafter.ids, *(mapping.drafter.encode(b" s")), *(mapping.drafter.encode(b"at on"))]
    mapped = streams.take(own[-len(own) + len(streams.drafter) :], 64)
    set_to(streams, 2, len(prompt) + len(mapped), [], len(prompt) + len(mapped))
    assert streams.drafter.ids == own and streams.data == b"The cat sat on"


def test_special_tokens_are_paired_spelled_out_or_left_to_each_vocabulary() -> None:
    target, drafter = VOCABULARIES["large"], VOCABULARIES["pieces"]
    mapping = PAIRS["large", "pieces"]
    streams = TokenStreams(mapping)
    begin, user, end = (target.specials[f"<|{name}|>"] for name in ("begin", "user", "end"))
    set_to(streams, 1, 0, [begin, user, *target.encode(b"The cat<|end|>"), end], 0)
    own = streams.drafter.ids
    # Before the text each has its own; the target's end is the drafter's; what only looks like one is text.
    assert own[0] == drafter.specials["<s>"] and own[-1] == drafter.specials["</s>"]
    assert b"".join(drafter.images[token] for token in own[1:-1]) == b"<|user|>The cat<|end|>"
    assert not drafter.special_ids & set(own[1:-1])


def test_a_draft_ends_with_the_targets_end_of_response() -> None:
    mapping = PAIRS["small", "pieces"]
    end = mapping.drafter.specials["</s>"]
    streams = TokenStreams(mapping)
    set_to(streams, 1, 0, mapping.target.encode(b"The"), 0)
    space = mapping.drafter.encode(b" ")
    assert streams.take([*space, end, *space], 9) == (*mapping.target.encode(b" "), 0)


def test_the_overlap_is_the_share_of_the_drafters_tokens() -> None:
    mapping = PAIRS["large", "small"]
    ordinary = [image for token, image in enumerate(mapping.drafter.images) if token > 2]
    shared = set(ordinary) & set(mapping.target.images)
    assert mapping.overlap == pytest.approx(len(shared) / len(ordinary)) and mapping.overlap > 0.8


def test_a_vocabulary_that_cannot_spell_written_text_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    with pytest.raises(ModelError, match=r"words: the tokenizer has no token for 205 of 208 bytes"):
        VocabularyMap(VOCABULARIES["small"], Vocabulary(json.loads(tokenizer.to_str()), "words"))
    with pytest.raises(ModelError, match="broken is not a tokenizer"):
        Vocabulary({"model": {}}, "broken")


@pytest.mark.parametrize("target", ["pieces", "large"])
def test_a_byte_without_a_token_is_a_question_mark_to_the_drafter(target: str) -> None:
    mapping = PAIRS[target, "partial"]
    streams = TokenStreams(mapping)
    set_to(streams, 1, 0, mapping.target.encode(b"a\x04b \xf1 c\r\n"), 0)
    assert spelled(mapping, streams) == b"a?b ? c?\n"
    draft = mapping.drafter.encode(b" the cat")
    assert b"".join(mapping.target.images[token] for token in streams.take(draft, 9)) == b" the cat"


@pytest.mark.parametrize("text", ["", "a", "é", "日本", "🙂"])
def test_an_incomplete_character_is_left_out(text: str) -> None:
    data = text.encode()
    last = len(data[: len(data)]) - (len(text[-1:].encode()))
    assert complete_length(data) == len(data)
    for cut in range(last + 1, len(data)):
        assert complete_length(data[:cut]) == last
