"""Fractions of GPUs: which requests a node's GPUs can hold. Pure."""

from collections.abc import Iterable

_UNITS = 10_000
"""Ray counts resources in these parts."""


def fit_on_gpus(num_gpus: float, requests: Iterable[float]) -> bool:
    """Check that the GPUs of a node can hold these requests, each a fraction of one GPU or whole GPUs.

    The requests are given in the order of their starts. As Ray does, a fraction takes the fullest GPU that
    has room for it, and whole GPUs must be unused.
    """
    free = [_UNITS] * int(num_gpus)
    for asked in (round(request * _UNITS) for request in requests):
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
