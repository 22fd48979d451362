"""Which KV memory holds which beginnings of sequences, by chained hashes of blocks of tokens; pure."""

from collections.abc import Sequence, Set
from typing import NamedTuple, Protocol

from fly.blocks import BLOCK_TOKENS, BlockKey
from services.engine.base import Slot


class Match(NamedTuple):
    """A slot that holds a prefix, and how many of its blocks."""

    slot: Slot
    num_blocks: int


class PrefixIndex:
    """Which slots hold which blocks; a slot that holds a block holds all before it."""

    def __init__(self) -> None:
        self._chains: dict[Slot, list[BlockKey]] = {}
        self._holders: dict[BlockKey, dict[Slot, None]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def num_blocks(self, slot: Slot) -> int:
        """Blocks that are known of the slot."""
        return len(self._chains.get(slot, ()))

    def extend(self, slot: Slot, keys: Sequence[BlockKey]) -> None:
        """The slot holds the blocks `keys`, of which what is known already is a beginning."""
        chain = self._chains.setdefault(slot, [])
        for key in keys[len(chain) :]:
            chain.append(key)
            self._holders.setdefault(key, {})[slot] = None

    def truncate(self, slot: Slot, num_tokens: int) -> None:
        """The slot's memory is about to change from position `num_tokens` on."""
        chain = self._chains.get(slot, [])
        for key in chain[num_tokens // BLOCK_TOKENS :]:
            del self._holders[key][slot]
            if not self._holders[key]:
                del self._holders[key]
        del chain[num_tokens // BLOCK_TOKENS :]

    def forget(self, slot: Slot) -> None:
        """The slot holds nothing any more."""
        self.truncate(slot, 0)
        self._chains.pop(slot, None)

    def match(self, keys: Sequence[BlockKey], known_blocks: int, slot: Slot) -> Match | None:
        """The longest beginning of `keys` that a slot other than `slot` holds.

        Args:
            keys: Of the prefix that is wanted.
            known_blocks: No match that is not longer is of use.
            slot: Who asks.
        """
        longest: dict[Slot, None] = {}
        length = known_blocks
        for key in keys[known_blocks:]:
            holders = self._holders.get(key, {})
            if len(holders) == (slot in holders):
                break
            longest, length = holders, length + 1
        return Match(next(other for other in longest if other != slot), length) if longest else None

    def covering(self, slot: Slot) -> Set[Slot]:
        """The other slots that hold every block of the slot, which must hold some."""
        return self._holders[self._chains[slot][-1]].keys() - {slot}


class Prefixes(Protocol):
    """What a sequence asks of a memory that remembers prefixes; on the engine's thread only."""

    def num_published(self, slot: Slot) -> int:
        """Blocks of the slot that others may have."""

    def publish(self, slot: Slot, keys: Sequence[BlockKey]) -> None:
        """NgramSource may have the blocks `keys` of the slot from now on."""

    def reuse(self, slot: Slot, keys: Sequence[BlockKey], known_blocks: int) -> int:
        """Fills the slot with the longest beginning of `keys` that is known, if it exceeds `known_blocks`.

        Returns:
            Blocks that the slot holds now; 0 where nothing was found, or no room for it.
        """


class NoPrefixes:
    """Remembers nothing."""

    def num_published(self, slot: Slot) -> int:
        return 0

    def publish(self, slot: Slot, keys: Sequence[BlockKey]) -> None:
        return

    def reuse(self, slot: Slot, keys: Sequence[BlockKey], known_blocks: int) -> int:
        return 0


NO_PREFIXES = NoPrefixes()
