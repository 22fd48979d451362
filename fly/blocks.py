"""Blocks of tokens and their chained hashes: sequences with a common prefix have equal block keys."""

import hashlib
from array import array
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""Tokens per block: prefixes are cached and shared in multiples of it."""
_KEY_BYTES = 16

BlockKey = bytes
"""The hash of a block of tokens, of all tokens before it, and of the cache salt.

The token ids are neither stored nor compared. Two different prefixes with the same key are a collision of
BLAKE2b at 128 bits, which cannot be produced on purpose. The rolling hash of `fly/sequence.py` is not enough
here: its collisions are easy to produce, and one user's prompt must never read another user's KV cache."""


class BlockChain:
    """The block keys of one sequence, computed on demand."""

    __slots__ = ("_keys", "_root")

    def __init__(self, salt: str) -> None:
        """Start a chain; chains of different salts have no key in common."""
        self._root = hashlib.blake2b(salt.encode(), digest_size=_KEY_BYTES).digest()
        self._keys: list[BlockKey] = []

    def keys(self, ids: Sequence[int], num_blocks: int) -> list[BlockKey]:
        """Return the keys of the first `num_blocks` blocks of `ids`; all of them must be full."""
        for start in range(len(self._keys) * BLOCK_TOKENS, num_blocks * BLOCK_TOKENS, BLOCK_TOKENS):
            parent = self._keys[-1] if self._keys else self._root
            block = array("I", ids[start : start + BLOCK_TOKENS]).tobytes()
            self._keys.append(hashlib.blake2b(parent + block, digest_size=_KEY_BYTES).digest())
        return self._keys[:num_blocks]

    def truncate(self, num_tokens: int) -> None:
        """Drop the keys of blocks that contain tokens from position `num_tokens` on."""
        del self._keys[num_tokens // BLOCK_TOKENS :]
