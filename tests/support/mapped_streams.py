"""Properties of every pair of vocabularies: its streams have the same bytes, and drafts continue them."""

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from flyserve.core.sequence import SequenceUpdate
from services.drafter.vocabulary.mapping import VocabularyMap
from services.drafter.vocabulary.streams import TokenStreams


def texts_of(samples: Sequence[str]) -> st.SearchStrategy[str]:
    """Return texts of the words of some samples, so that merges apply, and of any characters."""
    words = st.sampled_from(" ".join(samples).split(" "))
    return st.lists(st.one_of(words, words, st.text(max_size=6)), max_size=12).map(" ".join)


def set_to(streams: TokenStreams, step: int, keep: int, tokens: Sequence[int], decided: int) -> None:
    """Send an update of the target's tokens."""
    prefix = streams.target.tokens.prefix_hash(keep)
    streams.apply(SequenceUpdate(step, keep, tuple(tokens), decided, prefix))


def spelled(mapping: VocabularyMap, streams: TokenStreams) -> bytes:
    """Return the bytes of the drafter's tokens after those that it puts before a text."""
    lead = mapping.drafter.lead
    assert tuple(streams.drafter.ids[: len(lead)]) == lead
    return b"".join(mapping.drafter_images[token] for token in streams.drafter.ids[len(lead) :])


def assert_drafts_continue(mapping: VocabularyMap, text: str, other: str, chance: random.Random) -> None:
    """Assert, at every cut of a text, that the streams agree and that they continue with a draft."""
    tokens = mapping.target.encode(text.encode("utf-8", "replace"))
    own = mapping.drafter.encode(other.encode("utf-8", "replace"))
    draft = [*own, chance.randrange(len(mapping.drafter))]
    for cut in range(len(tokens) + 1):
        streams = TokenStreams(mapping)
        set_to(streams, 1, 0, tokens[:cut], 0)
        assert spelled(mapping, streams) == streams.data
        before = streams.data
        mapped = streams.take(draft, 8)
        assert len(mapped) <= 8
        drafted = b"".join(mapping.drafter_images[token] for token in draft)
        assert (before + drafted).startswith(streams.data)
        assert streams.data == before + b"".join(mapping.target_images[token] for token in mapped)
        kept = cut + chance.randrange(len(mapped) + 1)
        set_to(streams, 2, kept, [], 0)
        assert spelled(mapping, streams) == streams.data


def assert_updates_keep_bytes(
    mapping: VocabularyMap, texts: st.SearchStrategy[str], data: st.DataObject
) -> None:
    """Assert that any updates leave the streams with the same bytes, and what is settled as it is."""
    streams, decided = TokenStreams(mapping), 0
    ids = st.lists(st.integers(0, len(mapping.target) - 1), max_size=12)
    for step in range(1, 8):
        length = len(streams.target)
        keep = data.draw(st.integers(decided, length))
        added = data.draw(
            st.one_of(ids, texts.map(lambda text: mapping.target.encode(text.encode("utf-8", "replace"))))
        )
        settled = streams.drafter.ids[: streams.num_settled]
        decided = data.draw(st.integers(decided, keep + len(added)))
        if keep == 0:
            added = streams.target.tokens.ids[:decided] + added
        set_to(streams, step, keep, added, decided)
        assert spelled(mapping, streams) == streams.data
        assert streams.drafter.ids[: len(settled)] == settled
        draft = data.draw(st.lists(st.integers(0, len(mapping.drafter) - 1), max_size=5))
        before = streams.data
        streams.take(draft, 4)
        assert streams.data.startswith(before)
