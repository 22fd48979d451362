"""One sequence in two vocabularies: the target's tokens, and the drafter's tokens with the same bytes."""

from collections.abc import Sequence

from flyserve.core.sequence import ReplicatedSequence, SequenceUpdate, TokenSequence, common_length
from services.drafter.vocabulary.mapping import VocabularyMap
from services.drafter.vocabulary.spelling import LOOKBACK, Spelling, anchor, starts_word


class TokenStreams:
    """The tokens of one sequence in both vocabularies, whose bytes are equal after every `apply`.

    After `take` the drafter's tokens include its whole draft, which the target's tokens may have a part of.
    A change tokenizes again only the bytes from the last word before it on.

    Attributes:
        target: The target's tokens, as the client of the drafter has them.
        drafter: The drafter's tokens.
    """

    def __init__(self, mapping: VocabularyMap) -> None:
        self.target = ReplicatedSequence(len(mapping.target))
        self.drafter = TokenSequence(mapping.drafter.lead)
        self._map = mapping
        self._target, self._drafter = Spelling(), Spelling()
        self._drafter.extend(b"" for _ in mapping.drafter.lead)

    @property
    def data(self) -> bytes:
        """The bytes of the target's tokens."""
        return bytes(self._target.data)

    def apply(self, update: SequenceUpdate) -> None:
        """Apply an update of the target's tokens, then follow with those of the drafter.

        Raises:
            StaleState, InvalidRequest: As `ReplicatedSequence.apply`; nothing has changed.
        """
        unchanged = self.target.apply(update)
        images = self._map.target_images
        self._target.truncate(unchanged)
        self._target.extend(images[token] for token in self.target.tokens.ids[unchanged:])
        self._follow(self._target.start(unchanged))

    def num_drafter_tokens(self, num_target_tokens: int) -> int:
        """Return how many of the drafter's tokens the first tokens of the target contain."""
        return self._drafter.num_within(self._target.start(num_target_tokens))

    @property
    def num_settled(self) -> int:
        """Number of the drafter's tokens that no later update changes."""
        offset = self._target.start(self.target.decided) - LOOKBACK
        return self._drafter.num_within(max(0, offset))

    def take(self, draft: Sequence[int], most: int) -> tuple[int, ...]:
        """Append a draft of the drafter; return at most `most` tokens for the target, appended as well."""
        images = self._map.drafter_images
        self.drafter.extend(draft)
        self._drafter.extend(images[own] for own in draft)
        tokens = self._map.same_text(draft, self._last_word(images[draft[0]] if draft else b""))
        return self._append(tokens[:most])

    def cut(self, num_tokens: int) -> None:
        """Drop the target's tokens from this one on."""
        self.target.tokens.truncate(num_tokens)
        self._target.truncate(num_tokens)

    def _append(self, tokens: Sequence[int]) -> tuple[int, ...]:
        self.target.tokens.extend(tokens)
        self._target.extend(self._map.target_images[token] for token in tokens)
        return tuple(tokens)

    def _follow(self, unchanged: int) -> None:
        """Give the drafter's tokens the bytes of the target's; the first `unchanged` bytes are equal."""
        data, own = self._target.data, self._drafter
        end = unchanged + common_length(own.data[unchanged:], data[unchanged:])
        kept = own.num_within(end)
        if end < len(data) or own.start(kept) < end:
            kept = anchor(own, end, data)
        start = own.start(kept)
        self.drafter.truncate(kept)
        own.truncate(kept)
        first = self._target.num_within(start)
        tokens = self.target.tokens.ids[first:]
        ids = self._map.respell(tokens, start - self._target.start(first)) if start < len(data) else []
        self.drafter.extend(ids)
        own.extend(self._map.drafter_images[token] for token in ids)

    def _last_word(self, following: bytes) -> list[int]:
        """Return the target's tokens of the last word; none if `following` begins another one."""
        data, specials = self._target.data, self._map.target.special_ids
        if not data or starts_word(bytes(data[-1:]) + following, 1):
            return []
        tokens = self.target.tokens.ids[anchor(self._target, len(data), data) :]
        last = max((index + 1 for index, token in enumerate(tokens) if token in specials), default=0)
        return tokens[last:]
