"""Prefix caching: find KV slots with a common prefix by chained hashes of token blocks; pure."""

import bisect
from collections.abc import Sequence, Set
from typing import NamedTuple

from flyserve.core.blocks import BLOCK_TOKENS, BlockKey
from services.engine.base import KvSlot


class PrefixMatch(NamedTuple):
    """A slot that holds a prefix, and the number of its blocks."""

    slot: KvSlot
    num_blocks: int


class PrefixIndex:
    """Index of the blocks that slots hold; a slot that holds a block holds all blocks before it."""

    def __init__(self) -> None:
        self._chains: dict[KvSlot, list[BlockKey]] = {}
        self._holders: dict[BlockKey, dict[KvSlot, None]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def num_blocks(self, slot: KvSlot) -> int:
        """Return the number of indexed blocks of the slot."""
        return len(self._chains.get(slot, ()))

    def extend(self, slot: KvSlot, keys: Sequence[BlockKey]) -> None:
        """Record that the slot holds the blocks `keys`, which begin with those already indexed."""
        chain = self._chains.setdefault(slot, [])
        for key in keys[len(chain) :]:
            chain.append(key)
            self._holders.setdefault(key, {})[slot] = None

    def truncate(self, slot: KvSlot, num_tokens: int) -> None:
        """Remove blocks from position `num_tokens` on, because the slot's memory is about to change there."""
        chain = self._chains.get(slot, [])
        for key in chain[num_tokens // BLOCK_TOKENS :]:
            del self._holders[key][slot]
            if not self._holders[key]:
                del self._holders[key]
        del chain[num_tokens // BLOCK_TOKENS :]

    def forget(self, slot: KvSlot) -> None:
        """Remove all blocks of the slot."""
        self.truncate(slot, 0)
        self._chains.pop(slot, None)

    def match(self, keys: Sequence[BlockKey], computed_blocks: int, slot: KvSlot) -> PrefixMatch | None:
        """Return the longest prefix of `keys` that a slot other than `slot` holds.

        It must be longer than the `computed_blocks` that `slot` has already.
        """
        longest: dict[KvSlot, None] = {}
        length = computed_blocks
        for key in keys[computed_blocks:]:
            holders = self._holders.get(key, {})
            if len(holders) == (slot in holders):
                break
            longest, length = holders, length + 1
        return PrefixMatch(next(other for other in longest if other != slot), length) if longest else None

    def num_held(self, keys: Sequence[BlockKey], slot: KvSlot) -> int:
        """Return the length of the longest prefix of `keys` that a slot other than `slot` holds."""

        def is_missing(key: BlockKey) -> bool:
            holders = self._holders.get(key, {})
            return len(holders) == (slot in holders)

        return bisect.bisect_left(keys, True, key=is_missing)

    def covering(self, slot: KvSlot) -> Set[KvSlot]:
        """Return the other slots that hold every block of the slot, which must hold at least one."""
        return self._holders[self._chains[slot][-1]].keys() - {slot}


class PrefixCache:
    """Shared prefixes, as a sequence uses them, on the engine's thread only; this base shares nothing."""

    def num_published(self, slot: KvSlot) -> int:
        """Return the number of blocks of the slot that others may share."""
        return 0

    def publish(self, slot: KvSlot, keys: Sequence[BlockKey]) -> None:
        """Allow others to share the blocks `keys` of the slot."""

    def reuse(self, slot: KvSlot, keys: Sequence[BlockKey], computed_blocks: int) -> int:
        """Fill the slot with the longest cached prefix of `keys`, if it is longer than `computed_blocks`.

        Returns:
            Blocks that the slot holds now; 0 if no such prefix was found or memory is full.
        """
        return 0


NULL_PREFIX_CACHE = PrefixCache()
