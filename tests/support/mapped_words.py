"""A tiny pair of vocabularies over three letters, and the drafts of a greedy drafter mapped between them."""

import json
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fly.sequence import SequenceUpdate
from services.drafter.vocabulary.mapping import VocabularyMap
from services.drafter.vocabulary.streams import TokenStreams
from services.drafter.vocabulary.vocabulary import Vocabulary

_TARGET_MERGES = [("a", "b"), ("b", "c"), ("c", "a"), ("ab", "c"), ("c", "c"), ("b", "a"), ("a", "ab")]
_DRAFTER_MERGES = [("a", "b"), ("b", "c"), ("bc", "a"), ("c", "c"), ("a", "a"), ("ab", "b")]


def _vocabulary(letters: Sequence[str], merges: list[tuple[str, str]], name: str) -> Vocabulary:
    tokens = [*letters, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Vocabulary(json.loads(tokenizer.to_str()), name)


MAP = VocabularyMap(
    _vocabulary("abc", _TARGET_MERGES, "target"),
    _vocabulary(sorted(pre_tokenizers.ByteLevel.alphabet()), _DRAFTER_MERGES, "drafter"),
)
NUM_WORDS = len(MAP.target)
_OWN = [token for token, image in enumerate(MAP.drafter.images) if image and set(image) <= set(b"abc")]


def mapped_draft(words: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most `most` words for the target after its `words`, of a drafter that is greedy.

    The drafter's next token depends on its last one alone.
    """
    streams = TokenStreams(MAP)
    streams.apply(SequenceUpdate(1, 0, tuple(words), 0, 0))
    drafted = [streams.drafter.ids[-1]]
    for _ in range(most + 1):
        drafted.append(_OWN[(7 * _OWN.index(drafted[-1]) + 3) % len(_OWN)])
    return streams.take(drafted[1:], most)
