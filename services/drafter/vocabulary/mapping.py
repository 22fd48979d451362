"""The map between two vocabularies: tokens with the same bytes, special tokens, tokens of the same text."""

from collections.abc import Collection, Sequence
from pathlib import Path

from services.common.token_map import read_eos_ids
from services.drafter.vocabulary.spelling import MARK, complete_length
from services.drafter.vocabulary.vocabulary import Vocabulary

_MARK = bytes((MARK,))


class VocabularyMap:
    """The vocabularies of a target and of its drafter.

    A special token stands for the one of the same name, or one that ends a response for one that does. Such a
    pair has bytes of its own, which no text has. A special token of the target without a partner is spelled
    out for the drafter. The special tokens before a text have no bytes: each vocabulary has its own. In a
    sequence of both, a byte that the drafter has no token for, as of a control character, is a question mark.

    Attributes:
        target_images: Bytes of each token of the target in a sequence of both.
        drafter_images: The same of the drafter.
        to_drafter: Tokens of the drafter with the same bytes, by token of the target; special ones included.
        to_target: The same the other way.
        overlap: Share of the drafter's ordinary tokens that the target has too.
    """

    def __init__(
        self,
        target: Vocabulary,
        drafter: Vocabulary,
        target_eos: Collection[int] = (),
        drafter_eos: Sequence[int] = (),
    ) -> None:
        """Map two vocabularies; `target_eos` and `drafter_eos` end responses.

        Raises:
            ModelError: The drafter's vocabulary cannot spell written text.
        """
        drafter.require_written_text()
        self.target, self.drafter = target, drafter
        leads = {drafter.images[token] for token in drafter.lead}
        target_leads = {
            *target.lead,
            *(token for name, token in target.specials.items() if name.encode() in leads),
        }
        pairs = dict(_special_pairs(target, drafter, target_leads, target_eos, drafter_eos))
        self._specials = frozenset(pairs)
        inverse = {own: token for token, own in reversed(pairs.items())}
        self.target_images = [image.translate(drafter.spellable) for image in target.images]
        self.drafter_images = [image.translate(drafter.spellable) for image in drafter.images]
        for own in drafter.special_ids:
            self.drafter_images[own] = _MARK + drafter.images[own] + _MARK
        for token, own in pairs.items():
            self.target_images[token] = self.drafter_images[own]
        for token in target_leads:
            self.target_images[token] = b""
        ordinary = _ordinary(target)
        own_ordinary = _ordinary(drafter)
        shared = {token: ordinary[image] for image, token in own_ordinary.items() if image in ordinary}
        self.overlap = len(shared) / max(1, len(own_ordinary))
        self.to_target = {**shared, **inverse}
        self.to_drafter = {**{token: own for own, token in shared.items()}, **pairs}

    @classmethod
    def load(cls, target: Path, drafter: Path) -> "VocabularyMap":
        """Read the tokenizers of two model folders.

        Raises:
            ModelError: A tokenizer cannot be read, or the drafter's cannot spell written text.
        """
        target_eos, drafter_eos = read_eos_ids(target) or (), read_eos_ids(drafter) or ()
        return cls(Vocabulary.load(target), Vocabulary.load(drafter), target_eos, drafter_eos)

    def respell(self, tokens: Sequence[int], skipped: int) -> list[int]:
        """Return the drafter's tokens for tokens of the target, without the first `skipped` bytes of them."""
        found, text = list[int](), bytearray()
        for index, token in enumerate(tokens):
            start = 0 if index else skipped
            if token in self._specials and not start:
                found += self.drafter.encode(text)
                found.append(self.to_drafter[token])
                text.clear()
            else:
                text += self.target_images[token][start:]
        return found + self.drafter.encode(text)

    def same_text(self, draft: Sequence[int], before: Sequence[int]) -> list[int]:
        """Return the target's tokens for the text of a draft, up to its first special token, that included.

        The text continues `before`, the target's tokens of its last word. A character that is incomplete at
        the end is left out.
        """
        specials = self.drafter.special_ids
        end = next((index for index, own in enumerate(draft) if own in specials), len(draft))
        data = b"".join(self.drafter.images[own] for own in draft[:end])
        text = data[: complete_length(data)]
        tokens = self._continue(text, before)
        is_whole = len(text) == len(data) == sum(len(self.target.images[token]) for token in tokens)
        if is_whole and end < len(draft) and (ending := self.to_target.get(draft[end])) is not None:
            tokens.append(ending)
        return tokens

    def _continue(self, text: bytes, before: Sequence[int]) -> list[int]:
        """Tokenize a text after its last word, if this leaves the tokens of the word; otherwise alone."""
        if before:
            word = b"".join(self.target.images[token] for token in before)
            tokens = self.target.encode(word + text)
            if tokens[: len(before)] == list(before):
                return tokens[len(before) :]
        return self.target.encode(text)


def _special_pairs(
    target: Vocabulary,
    drafter: Vocabulary,
    leads: Collection[int],
    target_eos: Collection[int],
    drafter_eos: Sequence[int],
) -> list[tuple[int, int]]:
    """Return pairs of a special token of the target and one of the drafter: first those of the same name."""
    own_leads, own_specials = set(drafter.lead), drafter.special_ids
    pairs = [
        (token, drafter.specials[name])
        for name, token in target.specials.items()
        if token not in leads and name in drafter.specials and drafter.specials[name] not in own_leads
    ]
    named = {token for token, _ in pairs}
    ending = next((own for own in drafter_eos if own in own_specials and own not in own_leads), None)
    if ending is not None:
        unpaired = (token for token in target_eos if token in target.special_ids and token not in leads)
        pairs += [(token, ending) for token in unpaired if token not in named]
    return pairs


def _ordinary(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Return the ordinary tokens by their bytes; of several the last, which is no byte of a fallback."""
    return {
        image: token
        for token, image in enumerate(vocabulary.images)
        if image and token not in vocabulary.special_ids
    }
