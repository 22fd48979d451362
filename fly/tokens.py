"""A sequence of token ids with a rolling hash of every prefix, and one side's view of the other's."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MODULUS = (1 << 61) - 1
_BASE = 0x1F3A_9D2C_55E7_0B61 % _MODULUS


def extend_hash(prefix_hash: int, token: int) -> int:
    """The hash of a prefix with one more token: a polynomial modulo the Mersenne prime 2^61 - 1."""
    return (prefix_hash * _BASE + token + 1) % _MODULUS


class TokenSequence:
    """Token ids by position, with the rolling hash of every prefix; truncation is by length."""

    __slots__ = ("_hashes", "ids")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self.ids: list[int] = []
        self._hashes = [0]
        self.extend(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, ids: Iterable[int]) -> None:
        last = self._hashes[-1]
        for token in ids:
            last = extend_hash(last, token)
            self.ids.append(token)
            self._hashes.append(last)

    def truncate(self, length: int) -> None:
        """Forgets all tokens from position `length` on."""
        del self.ids[length:]
        del self._hashes[length + 1 :]

    def prefix_hash(self, length: int) -> int:
        """Hash of the first `length` tokens; 0 for none."""
        return self._hashes[length]


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """What a sequence is from now on, told to a server that knows an earlier state (truth by position).

    Attributes:
        step_id: Increases by one per step of a stream.
        keep: Tokens that the server retains.
        tokens: Token ids to append after them.
        decided: Tokens of the new sequence that will never be rolled back.
        prefix_hash: Hash of the first `keep` tokens.
    """

    step_id: int
    keep: int
    tokens: tuple[int, ...]
    decided: int
    prefix_hash: int


class PeerView:
    """What a server knows of one sequence, as its client believes; makes the smallest update."""

    __slots__ = ("_decided", "_known", "_step_id")

    def __init__(self) -> None:
        self._known: list[int] = []
        self._decided = 0
        self._step_id = 0

    def update(self, sequence: TokenSequence, drafts: Sequence[int], decided: int) -> SequenceUpdate:
        """The step that turns what the server knows into `sequence + drafts`.

        Args:
            sequence: The sequence without drafts.
            drafts: Tokens to judge after it.
            decided: Length of the prefix that will never be rolled back; never decreases.
        """
        keep = self._common_length(sequence.ids)
        tokens = (*sequence.ids[keep:], *drafts)
        self._known[keep:] = tokens
        self._decided = decided
        self._step_id += 1
        return SequenceUpdate(self._step_id, keep, tokens, decided, sequence.prefix_hash(keep))

    def append(self, tokens: Sequence[int]) -> None:
        """The server added `tokens` of its own: a drafter knows its own draft."""
        self._known.extend(tokens)

    def forget(self) -> None:
        """The server lost the sequence: the next update replays it all."""
        self._known.clear()
        self._decided = 0

    def _common_length(self, ids: list[int]) -> int:
        limit = min(len(ids), len(self._known))
        length = min(self._decided, limit)
        while length < limit and ids[length] == self._known[length]:
            length += 1
        return length
