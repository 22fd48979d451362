"""KV cache in shared blocks: common prefixes are stored once, and rows are gathered by index for attention.

Used on a GPU, where memory is scarce and a gather is cheap; on a CPU contiguous memory is twice as fast. Its
gain and cost on a GPU have not been measured.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from flyserve.core.blocks import BLOCK_TOKENS
from flyserve.core.errors import ConfigError
from services.engine.base import KvSlot
from services.engine.forward.padding import NO_PADDING

Block = int
"""A block's number; its tokens are stored from row `block * BLOCK_TOKENS` on."""


class BlockAllocator:
    """Block tables per slot within a budget; a block in several tables is read-only.

    A slot that is about to write into shared blocks gets copies of its own first (copy on write).

    Attributes:
        block_tokens: Token positions of a block.
        kv_capacity: Token positions in total, in whole blocks.
    """

    shares_prefixes = True

    def __init__(
        self,
        kv_tokens: int,
        max_sequences: int,
        copy_block: Callable[[Block, Block], None],
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        """Create an empty allocator; `copy_block(source, target)` copies the contents of a block.

        Raises:
            ConfigError: `kv_tokens` is less than one block.
        """
        if kv_tokens < block_tokens:
            raise ConfigError(f"kv_tokens is {kv_tokens}, must be at least {block_tokens} (one block)")
        num_blocks = kv_tokens // block_tokens
        self.block_tokens = block_tokens
        self.max_sequences = max_sequences
        self.kv_capacity = num_blocks * block_tokens
        self._copy_block = copy_block
        self._tables: dict[KvSlot, tuple[Block, ...]] = {}
        self._retired: set[KvSlot] = set()
        self._free_slots: list[KvSlot] = []
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references: Counter[Block] = Counter()
        self._open_references: Counter[Block] = Counter()

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def kv_used(self) -> int:
        """Token positions of all blocks in use."""
        return len(self._references) * self.block_tokens

    @property
    def kv_cached(self) -> int:
        """Token positions of the blocks that only retired slots hold."""
        return (len(self._references) - len(self._open_references)) * self.block_tokens

    def table(self, slot: KvSlot) -> tuple[Block, ...]:
        """Return the slot's blocks in order; a new tuple after every change."""
        return self._tables[slot]

    def reserved(self, slot: KvSlot) -> int:
        """As `KvAllocator`."""
        return len(self._tables[slot]) * self.block_tokens

    def whole(self, num_tokens: int) -> int:
        """As `KvAllocator`."""
        return self._num_blocks(num_tokens) * self.block_tokens

    def allocate(self, num_tokens: int) -> KvSlot | None:
        """As `KvAllocator`."""
        if len(self._tables) - len(self._retired) >= self.max_sequences:
            return None
        if self._num_blocks(num_tokens) > len(self._free):
            return None
        slot = self._free_slots.pop() if self._free_slots else len(self._tables)
        self._tables[slot] = self._take(self._num_blocks(num_tokens))
        return slot

    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        """As `KvAllocator`; afterwards all blocks from position `start` on belong to this slot alone."""
        table, length = self._tables[slot], self._num_blocks(num_tokens)
        if length == 0:
            self._replace(slot, ())
            return True
        first = len(table) if start is None else start // self.block_tokens
        shared = [
            index for index in range(first, min(len(table), length)) if self._references[table[index]] > 1
        ]
        num_missing = max(0, length - len(table))
        if num_missing + len(shared) > len(self._free):
            return False
        if shared:
            self._unshare(slot, shared, start or 0)
        if num_missing:
            self._tables[slot] += self._take(num_missing)
        return True

    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        """As `KvAllocator`: share whole blocks, all of them, and copy the last one if it is partly filled."""
        num_shared, rest = divmod(num_tokens, self.block_tokens)
        if rest and not self._free:
            return False
        shared, own = self._tables[source], self._tables[slot]
        self._hold(shared[:num_shared])
        copied = self._take(1) if rest else ()
        for block in copied:
            self._copy_block(shared[num_shared], block)
        kept = own[num_shared + len(copied) :]
        self._tables[slot] = (*shared[:num_shared], *copied, *kept)
        self._release(own[: num_shared + len(copied)])
        return True

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        """As `KvAllocator`; frees the blocks beyond `num_tokens`."""
        self._replace(slot, self._tables[slot][: self._num_blocks(num_tokens)])
        self._retired.add(slot)
        _subtract(self._open_references, self._tables[slot])

    def free(self, slot: KvSlot) -> None:
        """As `KvAllocator`."""
        is_open = slot not in self._retired
        self._retired.discard(slot)
        self._release(self._tables.pop(slot), is_open)
        self._free_slots.append(slot)

    def _unshare(self, slot: KvSlot, indices: Iterable[int], start: int) -> None:
        """Replace shared blocks by blocks of the slot's own; copy those with positions before `start`."""
        table = list(self._tables[slot])
        for index in indices:
            (own,) = self._take(1)
            if index * self.block_tokens < start:
                self._copy_block(table[index], own)
            self._release((table[index],))
            table[index] = own
        self._tables[slot] = tuple(table)

    def _replace(self, slot: KvSlot, table: tuple[Block, ...]) -> None:
        """Shorten an open slot's table."""
        old, self._tables[slot] = self._tables[slot], table
        self._release(old[len(table) :])

    def _take(self, num_blocks: int) -> tuple[Block, ...]:
        """Take free blocks for an open slot; there must be enough."""
        blocks = tuple(self._free.pop() for _ in range(num_blocks))
        self._hold(blocks)
        return blocks

    def _hold(self, blocks: tuple[Block, ...]) -> None:
        self._references.update(blocks)
        self._open_references.update(blocks)

    def _release(self, blocks: tuple[Block, ...], is_open: bool = True) -> None:
        if is_open:
            _subtract(self._open_references, blocks)
        self._free += _subtract(self._references, blocks)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)


def _subtract(references: Counter[Block], blocks: Iterable[Block]) -> list[Block]:
    """Decrease the reference counts of `blocks`; remove and return those that reach 0."""
    unused = []
    for block in blocks:
        references[block] -= 1
        if not references[block]:
            del references[block]
            unused.append(block)
    return unused


class PagedKvCache(BlockAllocator):
    """One tensor (positions, 2, heads, dim) per layer, in blocks that slots share; a `KvCache`.

    A layer's tensor is created at full size when the layer first writes, with the shape of the model's rows,
    or by `create_memory` once a cache that is `like` this one has been written to.

    Attributes:
        spare_row: Row of memory in a block that no slot has: padding is written there, and never read.
    """

    def __init__(
        self,
        kv_tokens: int,
        max_sequences: int,
        dtype: torch.dtype | None = None,
        shapes: dict[int, Tensor] | None = None,
    ) -> None:
        self._layers: dict[int, Tensor] = {}
        # NOTE: no method of this object: a cycle would keep the memory of the GPU until it is collected.
        super().__init__(kv_tokens, max_sequences, partial(_copy_block, self._layers))
        self.spare_row = self.kv_capacity
        self.dtype = dtype
        self.padding = NO_PADDING
        self._shapes: dict[int, Tensor] = {} if shapes is None else shapes  # empty tensors, like the layers'
        self._positions: dict[KvSlot, tuple[tuple[Block, ...], Tensor]] = {}

    def clear_after(self, slot: KvSlot, end: int) -> None:
        """As `KvCache`: nothing, since no padding is read."""

    def like(self, kv_tokens: int, max_sequences: int) -> "PagedKvCache":
        return PagedKvCache(kv_tokens, max_sequences, self.dtype, self._shapes)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position in all layers that have written, here or in a cache that is like this one."""
        return sum(math.prod(shape.shape[1:]) * shape.itemsize for shape in self._shapes.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors that exist."""
        return sum(memory.nbytes for memory in self._layers.values())

    def create_memory(self) -> None:
        """Create the tensors of these layers."""
        for layer in self._shapes:
            self._create(layer)

    def free(self, slot: KvSlot) -> None:
        self._positions.pop(slot, None)
        super().free(slot)

    def store(self, layer: int, slot: KvSlot, start: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """As `KvCache`: keys and values are copied from the slot's blocks."""
        memory = self.layer(layer, new)
        positions = self.positions(slot, memory.device)[: start + len(new)]
        memory.index_copy_(0, positions[start:], new.to(memory.dtype))
        whole = memory.index_select(0, positions).permute(1, 2, 0, 3)
        return whole[:1], whole[1:]

    def positions(self, slot: KvSlot, device: torch.device) -> Tensor:
        """Return the rows of memory with the slot's positions, in order; kept until its blocks change."""
        table = self.table(slot)
        kept = self._positions.get(slot)
        if kept is None or kept[0] is not table:
            firsts = torch.tensor(table, dtype=torch.long, device=device)[:, None] * BLOCK_TOKENS
            rows = (firsts + torch.arange(BLOCK_TOKENS, device=device)).flatten()
            kept = self._positions[slot] = table, rows
        return kept[1]

    def layer(self, layer: int, like: Tensor) -> Tensor:
        """Return a layer's memory, (positions, 2, heads, dim); made for rows `like` these if it is new."""
        if layer not in self._layers:
            self._shapes[layer] = like.new_empty((0, *like.shape[1:]), dtype=self.dtype or like.dtype)
            self._create(layer)
        return self._layers[layer]

    def _create(self, layer: int) -> None:
        shape = self._shapes[layer]
        self._layers[layer] = shape.new_zeros((self.kv_capacity + BLOCK_TOKENS, *shape.shape[1:]))


def _copy_block(layers: Mapping[int, Tensor], source: Block, target: Block) -> None:
    """Copy the contents of a block in all layers."""
    for memory in layers.values():
        blocks = memory.view(-1, BLOCK_TOKENS, *memory.shape[1:])
        blocks[target].copy_(blocks[source])
