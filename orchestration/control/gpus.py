"""Amounts of resources as Ray counts them, and the requests that a node's GPUs can hold. Pure."""

from collections.abc import Iterable

_UNITS = 10_000
"""Ray counts resources in these parts."""


def units(amount: float) -> int:
    """Return an amount of a resource in Ray's units: sums of fractions are exact there, as five times 0.2."""
    return round(amount * _UNITS)


def fit_on_gpus(num_gpus: float, requests: Iterable[float]) -> bool:
    """Check that the GPUs of a node can hold these requests, each a fraction of one GPU or whole GPUs.

    A fraction takes the fullest GPU that has room for it, as in Ray, and whole GPUs must be unused. Larger
    requests come first: which GPU a running process has is not known here, and a replica that would fit must
    not wait for ever.
    """
    free = [_UNITS] * int(num_gpus)
    for asked in sorted(map(units, requests), reverse=True):
        if asked > _UNITS:
            unused = [index for index, left in enumerate(free) if left == _UNITS][: -(-asked // _UNITS)]
            if len(unused) * _UNITS < asked:
                return False
            for index in unused:
                free[index] = 0
        elif asked:
            roomy = [index for index, left in enumerate(free) if left >= asked]
            if not roomy:
                return False
            free[min(roomy, key=free.__getitem__)] -= asked
    return True
