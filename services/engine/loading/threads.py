"""Choose the number of threads of a model's forwards by measurement. Pure."""

from collections.abc import Callable

from flyserve.core.messages import ForwardCosts


def fastest_threads(most: int, measure: Callable[[int], ForwardCosts]) -> tuple[int, ForwardCosts]:
    """Return the fastest of `most` threads, half of them, and so on, with its costs.

    It stops at the first half that is not faster. More threads are slower for a small model, among two
    threads of a core, and by far on a machine that other processes keep busy: each waits for the last one.
    """
    best = most, measure(most)
    while best[0] > 1:
        half = best[0] // 2
        costs = measure(half)
        if _seconds(costs) >= _seconds(best[1]):
            break
        best = half, costs
    return best


def _seconds(costs: ForwardCosts) -> float:
    return costs.decode_s + costs.verify_s
