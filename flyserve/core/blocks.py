"""Blocks of tokens and their chained hashes: sequences with a common prefix have equal block keys."""

import hashlib
from array import array
from collections.abc import Sequence
from copy import copy

BLOCK_TOKENS = 16
"""Tokens per block: prefixes are cached and shared in multiples of it."""
_KEY_BYTES = 16

BlockKey = bytes
"""The hash of a block of tokens, of all tokens before it, and of the cache salt.

The token ids are neither stored nor compared. Two different prefixes with the same key are a collision of
BLAKE2b at 128 bits, which cannot be produced on purpose: one user's prompt must never read another user's KV
cache. Ids count as 32-bit integers in the machine's byte order, which is little-endian wherever this runs."""


class BlockChain:
    """The block keys of one sequence, computed on demand."""

    __slots__ = ("_block_tokens", "_keys", "_root")

    def __init__(self, salt: str, block_tokens: int = BLOCK_TOKENS) -> None:
        """Start a chain; chains of different salts have no key in common."""
        self._block_tokens = block_tokens
        self._root = hashlib.blake2b(salt.encode(), digest_size=_KEY_BYTES).digest()
        self._keys: list[BlockKey] = []

    def keys(self, ids: Sequence[int], num_blocks: int) -> list[BlockKey]:
        """Return the keys of the first `num_blocks` blocks of `ids`; all of them must be full."""
        if num_blocks > len(self._keys):
            self._compute(ids, num_blocks)
        return self._keys[:num_blocks]

    def prefix_key(self, ids: Sequence[int], length: int, key_bytes: int) -> bytes:
        """Return a key of the first `length` tokens, which need not fill their last block."""
        num_blocks = length // self._block_tokens
        if num_blocks > len(self._keys):
            self._compute(ids, num_blocks)
        parent = self._keys[num_blocks - 1] if num_blocks else self._root
        rest = array("I", ids[num_blocks * self._block_tokens : length]).tobytes()
        return hashlib.blake2b(parent + rest, digest_size=key_bytes).digest()

    def truncate(self, num_tokens: int) -> None:
        """Drop the keys of blocks that contain tokens from position `num_tokens` on."""
        del self._keys[num_tokens // self._block_tokens :]

    def copy(self) -> "BlockChain":
        """Return a chain with the same keys."""
        other = copy(self)
        other._keys = self._keys.copy()
        return other

    def _compute(self, ids: Sequence[int], num_blocks: int) -> None:
        """Add the keys up to block `num_blocks`."""
        keys, size = self._keys, self._block_tokens
        new = array("I", ids[len(keys) * size : num_blocks * size])
        blocks, num_bytes = new.tobytes(), size * new.itemsize
        parent, blake2b = keys[-1] if keys else self._root, hashlib.blake2b
        for start in range(0, len(blocks), num_bytes):
            block = blocks[start : start + num_bytes]
            parent = blake2b(parent + block, digest_size=_KEY_BYTES).digest()
            keys.append(parent)
