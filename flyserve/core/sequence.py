"""Token sequences that client and server keep equal by absolute-position updates and prefix hashes."""

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import compress, count
from operator import ne
from typing import NamedTuple

from flyserve.core.blocks import BlockChain
from flyserve.core.errors import InvalidRequest

_HASH_BLOCK_TOKENS = 64
"""Tokens per block of the chained hash: a prefix hash costs the blocks that have no key yet and the rest."""
_HASH_BYTES = 8


class TokenSequence:
    """Token ids, and the hash of every prefix, computed on demand."""

    __slots__ = ("_chain", "ids")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self.ids: list[int] = list(ids)
        self._chain = BlockChain("", _HASH_BLOCK_TOKENS)

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, ids: Iterable[int]) -> None:
        self.ids.extend(ids)

    def truncate(self, length: int) -> None:
        """Remove all tokens from position `length` on."""
        del self.ids[length:]
        self._chain.truncate(length)

    def copy(self) -> "TokenSequence":
        """Return a sequence of the same tokens, with the hashes that are known."""
        other = TokenSequence(self.ids)
        other._chain = self._chain.copy()
        return other

    def prefix_hash(self, length: int) -> int:
        """Return the hash of the first `length` tokens, 64 bits of BLAKE2b; 0 for an empty prefix."""
        if length <= 0:
            return 0
        return int.from_bytes(self._chain.prefix_key(self.ids, length, _HASH_BYTES), "little")


class SequenceUpdate(NamedTuple):
    """An update by absolute position: keep the first tokens of the server's sequence, then append others.

    Attributes:
        step_id: Number of the step; increases by one per step of a stream.
        keep: Number of tokens that the server keeps.
        tokens: Token ids to append after them.
        decided: Number of tokens of the new sequence that will never be rolled back.
        prefix_hash: Hash of the first `keep` tokens.
    """

    step_id: int
    keep: int
    tokens: tuple[int, ...]
    decided: int
    prefix_hash: int


class SequenceMirror:
    """The client's copy of the sequence that a server holds; computes the smallest update.

    Only the tokens that may be rolled back are copied: the decided ones are those of the sequence itself.
    """

    __slots__ = ("_decided", "_step_id", "_undecided")

    def __init__(self) -> None:
        self._undecided: list[int] = []
        self._decided = 0
        self._step_id = 0

    def update(self, sequence: TokenSequence, drafts: Sequence[int], decided: int) -> SequenceUpdate:
        """Return the update that turns the server's sequence into `sequence + drafts`.

        Args:
            sequence: The sequence without drafts.
            drafts: Draft tokens after it.
            decided: Length of the prefix that will never be rolled back; never decreases.
        """
        ids, keep = sequence.ids, self.num_common(sequence)
        self._decided = decided
        self._undecided = [*ids[decided:], *drafts[max(0, decided - len(ids)) :]]
        self._step_id += 1
        return SequenceUpdate(
            step_id=self._step_id,
            keep=keep,
            tokens=(*ids[keep:], *drafts),
            decided=decided,
            prefix_hash=sequence.prefix_hash(keep),
        )

    def __len__(self) -> int:
        return self._decided + len(self._undecided)

    def num_common(self, sequence: TokenSequence) -> int:
        """Return the length of the longest common prefix of the server's sequence and `sequence`."""
        first = min(self._decided, len(sequence))
        return first + (common_length(sequence.ids[first:], self._undecided) if self._undecided else 0)

    def append(self, tokens: Sequence[int]) -> None:
        """Record `tokens` that the server appended itself: a drafter keeps its own draft."""
        self._undecided.extend(tokens)

    def forget(self) -> None:
        """Record that the server lost the sequence: the next update replays all of it."""
        self._undecided.clear()
        self._decided = 0


class StaleReason(Enum):
    """The reason why an update could not be applied."""

    BEYOND_STATE = "beyond_state"
    WRONG_HASH = "wrong_hash"


class StaleState(Exception):
    """The server does not hold the tokens that an update keeps; the stream answers `Stale`."""

    def __init__(self, reason: StaleReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class ReplicatedSequence:
    """The server's copy of one sequence.

    Attributes:
        tokens: The token ids.
        decided: Number of tokens that will never be rolled back.
    """

    def __init__(self, vocab_size: int, context_length: int = 0) -> None:
        """Create an empty sequence; ids lie below `vocab_size`, and a `context_length` of 0 is unlimited."""
        self.tokens = TokenSequence()
        self.decided = 0
        self._vocab_size = vocab_size
        self._context_length = context_length

    def __len__(self) -> int:
        return len(self.tokens)

    def apply(self, update: SequenceUpdate) -> int:
        """Truncate to `update.keep` tokens and append `update.tokens`; `keep = 0` replays the sequence.

        Returns:
            Length of the prefix that has not changed.

        Raises:
            StaleState: The kept tokens are not those of this sequence; the sequence is unchanged.
            InvalidRequest: A field violates a limit; the sequence is unchanged.
        """
        self._check_values(update)
        unchanged = update.keep
        if update.keep == 0:
            unchanged = common_length(self.tokens.ids, update.tokens)
        else:
            self._check_kept(update)
        self.tokens.truncate(unchanged)
        self.tokens.extend(update.tokens[unchanged - update.keep :])
        self.decided = update.decided
        return unchanged

    def _check_values(self, update: SequenceUpdate) -> None:
        tokens, most = update.tokens, self._vocab_size - 1
        if tokens and not 0 <= min(tokens) <= max(tokens) <= most:
            index = next(index for index, token in enumerate(tokens) if not 0 <= token <= most)
            raise InvalidRequest.of(f"update.tokens[{index}]", f"is {tokens[index]}, must be 0 to {most}")
        if update.keep < 0:
            raise InvalidRequest.of("update.keep", f"is {update.keep}, must be at least 0")
        length = update.keep + len(update.tokens)
        if self._context_length and length > self._context_length:
            raise InvalidRequest.of(
                "update.tokens", f"make {length} tokens, the context holds {self._context_length}"
            )
        if not 0 <= update.decided <= length:
            raise InvalidRequest.of("update.decided", f"is {update.decided}, must be 0 to {length}")

    def _check_kept(self, update: SequenceUpdate) -> None:
        if update.keep > len(self.tokens):
            raise StaleState(StaleReason.BEYOND_STATE)
        if self.tokens.prefix_hash(update.keep) != update.prefix_hash:
            raise StaleState(StaleReason.WRONG_HASH)
        if update.keep < self.decided:
            raise InvalidRequest.of("update.keep", f"is {update.keep}, must be 0 or at least {self.decided}")
        if update.decided < self.decided:
            raise InvalidRequest.of("update.decided", f"is {update.decided}, must be at least {self.decided}")


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    return next(compress(count(), map(ne, left, right)), min(len(left), len(right)))
