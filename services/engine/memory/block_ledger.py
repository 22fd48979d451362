"""The account of shared KV memory: blocks of tokens, who holds them, and which are free; pure."""

from collections import Counter
from collections.abc import Callable, Iterable

from fly.blocks import BLOCK_TOKENS
from fly.errors import ConfigError
from services.engine.base import Slot

Block = int
"""A block's number; its tokens lie at rows `block * BLOCK_TOKENS` and following."""


class BlockLedger:
    """Block tables by slot within a budget; a block may be in several, and is then only read.

    Whoever writes gets blocks of its own first. Of a block that it writes in part, the rest is copied.

    Attributes:
        max_sequences: Slots of open sequences at once.
        kv_capacity: Token positions in all, whole blocks.
    """

    def __init__(
        self, kv_tokens: int, max_sequences: int, copy_block: Callable[[Block, Block], None]
    ) -> None:
        """An empty account; `copy_block(source, target)` copies what a block holds.

        Raises:
            ConfigError: There is not room for one block.
        """
        if kv_tokens < BLOCK_TOKENS:
            raise ConfigError(f"kv_tokens is {kv_tokens}, must be at least {BLOCK_TOKENS}, one block")
        num_blocks = kv_tokens // BLOCK_TOKENS
        self.max_sequences = max_sequences
        self.kv_capacity = num_blocks * BLOCK_TOKENS
        self._copy_block = copy_block
        self._tables: dict[Slot, tuple[Block, ...]] = {}
        self._retired: set[Slot] = set()
        self._free_slots: list[Slot] = []
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders: Counter[Block] = Counter()
        self._open_holders: Counter[Block] = Counter()

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def kv_used(self) -> int:
        """Token positions of all blocks that somebody holds."""
        return len(self._holders) * BLOCK_TOKENS

    @property
    def kv_cached(self) -> int:
        """Of blocks that only retired slots hold."""
        return (len(self._holders) - len(self._open_holders)) * BLOCK_TOKENS

    def table(self, slot: Slot) -> tuple[Block, ...]:
        """The slot's blocks in order; another object whenever they have changed."""
        return self._tables[slot]

    def allocate(self, num_tokens: int) -> Slot | None:
        """As `Memory`."""
        if len(self._tables) - len(self._retired) >= self.max_sequences:
            return None
        if _num_blocks(num_tokens) > len(self._free):
            return None
        slot = self._free_slots.pop() if self._free_slots else len(self._tables)
        self._tables[slot] = self._take(_num_blocks(num_tokens))
        return slot

    def resize(self, slot: Slot, num_tokens: int, start: int | None = None) -> bool:
        """As `Memory`; what is written from `start` on is the slot's own afterwards."""
        table, length = self._tables[slot], _num_blocks(num_tokens)
        if length == 0:
            self._replace(slot, ())
            return True
        first = len(table) if start is None else start // BLOCK_TOKENS
        shared = [index for index in range(first, min(len(table), length)) if self._holders[table[index]] > 1]
        num_missing = max(0, length - len(table))
        if num_missing + len(shared) > len(self._free):
            return False
        if shared:
            self._unshare(slot, shared, start or 0)
        if num_missing:
            self._tables[slot] += self._take(num_missing)
        return True

    def share(self, source: Slot, slot: Slot, num_tokens: int) -> bool:
        """As `Memory.copy_prefix`: whole blocks are shared, the rest of a partly filled one is copied."""
        num_shared, rest = divmod(num_tokens, BLOCK_TOKENS)
        if rest and not self._free:
            return False
        theirs, own = self._tables[source], self._tables[slot]
        self._hold(theirs[:num_shared])
        copied = self._take(1) if rest else ()
        for block in copied:
            self._copy_block(theirs[num_shared], block)
        kept = own[num_shared + len(copied) :]
        self._tables[slot] = (*theirs[:num_shared], *copied, *kept)
        self._release(own[: num_shared + len(copied)])
        return True

    def retire(self, slot: Slot, num_tokens: int) -> None:
        """As `Memory`; blocks beyond `num_tokens` are given back."""
        self._replace(slot, self._tables[slot][: _num_blocks(num_tokens)])
        self._retired.add(slot)
        _subtract(self._open_holders, self._tables[slot])

    def free(self, slot: Slot) -> None:
        """As `Memory`."""
        is_open = slot not in self._retired
        self._retired.discard(slot)
        self._release(self._tables.pop(slot), is_open)
        self._free_slots.append(slot)

    def _unshare(self, slot: Slot, indices: Iterable[int], start: int) -> None:
        """Gives the slot blocks of its own in place of shared ones; what lies before `start` is copied."""
        table = list(self._tables[slot])
        for index in indices:
            (own,) = self._take(1)
            if index * BLOCK_TOKENS < start:
                self._copy_block(table[index], own)
            self._release((table[index],))
            table[index] = own
        self._tables[slot] = tuple(table)

    def _replace(self, slot: Slot, table: tuple[Block, ...]) -> None:
        """Shortens an open slot's table."""
        old, self._tables[slot] = self._tables[slot], table
        self._release(old[len(table) :])

    def _take(self, num_blocks: int) -> tuple[Block, ...]:
        """Free blocks, for an open slot; there must be as many."""
        blocks = tuple(self._free.pop() for _ in range(num_blocks))
        self._hold(blocks)
        return blocks

    def _hold(self, blocks: tuple[Block, ...]) -> None:
        self._holders.update(blocks)
        self._open_holders.update(blocks)

    def _release(self, blocks: tuple[Block, ...], is_open: bool = True) -> None:
        if is_open:
            _subtract(self._open_holders, blocks)
        self._free += _subtract(self._holders, blocks)


def _subtract(holders: Counter[Block], blocks: Iterable[Block]) -> list[Block]:
    """Counts one holder less of each; the blocks that nobody holds now are no more in it."""
    gone = []
    for block in blocks:
        holders[block] -= 1
        if not holders[block]:
            del holders[block]
            gone.append(block)
    return gone


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)
