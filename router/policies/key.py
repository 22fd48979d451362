"""What identifies the beginning of a request, for policies that send like to like."""

from collections.abc import Iterator, Sequence

from fly.blocks import BLOCK_TOKENS, BlockChain, BlockKey

RequestKey = tuple[BlockKey, ...]
"""Keys of a prompt's beginnings, the shortest first; empty where the prompt has no full block."""

_MOST_BLOCKS = 1024
_PER_DOUBLING = 8


def request_key(ids: Sequence[int], salt: str) -> RequestKey:
    """The key of a prompt under a cache salt: prompts with a beginning in common have one of keys in common.

    Every beginning of up to 16 blocks is told, of longer ones eight each time that the length doubles; what
    lies beyond 1,024 blocks does not count. The last token does not either: no cache ever answers for it.
    """
    num_blocks = min((len(ids) - 1) // BLOCK_TOKENS, _MOST_BLOCKS)
    if num_blocks < 1:
        return ()
    keys = BlockChain(salt).keys(ids, num_blocks)
    return tuple(keys[length - 1] for length in _lengths(num_blocks))


def _lengths(num_blocks: int) -> Iterator[int]:
    """Numbers of blocks, up to `num_blocks`."""
    length = 1
    while length <= num_blocks:
        yield length
        length += max(1, (1 << (length.bit_length() - 1)) // _PER_DOUBLING)
