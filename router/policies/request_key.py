"""Request keys: hashes of a prompt's prefixes, for policies that route by prefix."""

from collections.abc import Iterator, Sequence

from flyserve.core.blocks import BLOCK_TOKENS, BlockChain, BlockKey

RequestKey = tuple[BlockKey, ...]
"""Keys of a prompt's prefixes, the shortest first; empty if the prompt has no full block."""

_MOST_BLOCKS = 1024
_PER_DOUBLING = 8


def request_key(ids: Sequence[int], salt: str) -> RequestKey:
    """Return the key of a prompt under a cache salt; prompts with a common prefix have keys in common.

    The key has an entry for every prefix of up to 16 blocks, and eight entries for each doubling of the
    length after that, up to 1,024 blocks. The last token does not count: a prefix cache never answers for it.
    """
    num_blocks = min((len(ids) - 1) // BLOCK_TOKENS, _MOST_BLOCKS)
    if num_blocks < 1:
        return ()
    keys = BlockChain(salt).keys(ids, num_blocks)
    return tuple(keys[length - 1] for length in _lengths(num_blocks))


def _lengths(num_blocks: int) -> Iterator[int]:
    """Yield numbers of blocks, up to `num_blocks`."""
    length = 1
    while length <= num_blocks:
        yield length
        length += max(1, (1 << (length.bit_length() - 1)) // _PER_DOUBLING)
