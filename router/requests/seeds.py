"""Seeds of sampling: drawn where a request has none, and one for each of its choices."""

import random

SEED_BITS = 64

_MASK = (1 << SEED_BITS) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def draw_seed() -> int:
    """A seed that nobody chose."""
    return random.getrandbits(SEED_BITS)


def choice_seed(seed: int, index: int) -> int:
    """The seed of one choice: the first has the request's own, the others a hash of it.

    It is number `index` of the splitmix64 generator that starts at `seed`, so no two choices of a request
    share one.
    """
    if index == 0:
        return seed
    mixed = (seed + index * _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
