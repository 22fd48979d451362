"""Blocks of tokens, and the chained hashes that tell which sequences begin alike."""

import hashlib
from array import array
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""Tokens of a block: prefixes are known, and shared, in multiples of it."""
_KEY_BYTES = 16

BlockKey = bytes
"""Stands for a block of tokens, everything before it, and the salt: a hash of all three.

The ids themselves are neither kept nor compared. Two prefixes with one key would have to be a collision of
BLAKE2b at 128 bits, which nobody can make on purpose; the rolling hash of `fly/sequence.py` is not enough
here, because anybody can, and one user's prompt must never read another's memory."""


class BlockChain:
    """The keys of one sequence's blocks, each made when it is first asked for."""

    __slots__ = ("_keys", "_root")

    def __init__(self, salt: str) -> None:
        """Chains of different salts have no key in common."""
        self._root = hashlib.blake2b(salt.encode(), digest_size=_KEY_BYTES).digest()
        self._keys: list[BlockKey] = []

    def keys(self, ids: Sequence[int], num_blocks: int) -> list[BlockKey]:
        """Keys of the first `num_blocks` blocks of a sequence; all of them must be full."""
        for start in range(len(self._keys) * BLOCK_TOKENS, num_blocks * BLOCK_TOKENS, BLOCK_TOKENS):
            before = self._keys[-1] if self._keys else self._root
            block = array("I", ids[start : start + BLOCK_TOKENS]).tobytes()
            self._keys.append(hashlib.blake2b(before + block, digest_size=_KEY_BYTES).digest())
        return self._keys[:num_blocks]

    def truncate(self, num_tokens: int) -> None:
        """The tokens from position `num_tokens` on may have changed."""
        del self._keys[num_tokens // BLOCK_TOKENS :]
