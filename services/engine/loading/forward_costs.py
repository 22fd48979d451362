"""The costs of a model's forwards: the seconds that they take, and the bytes of weights that they read."""

import time
from collections.abc import Callable

from torch import nn

from flyserve.core.messages import VERIFIED_TOKENS, ForwardCosts
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, Scorer

_MAX_REPETITIONS = 8
_MIN_REPETITIONS = 3
_MAX_MEASUREMENT_S = 0.2
"""Longest measurement on a busy machine, after `_MIN_REPETITIONS`."""


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of weights that a forward of few tokens reads: all but embeddings, unless tied."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    tables -= {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    return sum(
        weight.numel() * weight.element_size() for weight in model.parameters() if id(weight) not in tables
    )


def measure_costs(scorer: Scorer) -> ForwardCosts:
    """Measure forwards of one sequence; raises what `measure_forward_s` raises."""
    return ForwardCosts(measure_forward_s(scorer), measure_forward_s(scorer, VERIFIED_TOKENS))


def measure_forward_s(scorer: Scorer, num_tokens: int = 1) -> float:
    """Measure the seconds for a forward of one sequence, the minimum of several runs.

    Raises:
        RuntimeError: The scorer has no free slot.
    """
    slot = scorer.allocate(num_tokens)
    if slot is None:
        raise RuntimeError("no slot is free to measure a forward")
    item = ForwardInput(
        slot=slot,
        start=0,
        tokens=(0,) * num_tokens,
        num_outputs=num_tokens,
        sampling=SamplingParams(),
        prompt_length=1,
        history=(0,) * num_tokens,
    )
    try:
        return minimum_s(lambda: scorer.forward([item]))
    finally:
        scorer.free(slot)


def minimum_s(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several runs; the first also warms up."""
    best, started = float("inf"), time.perf_counter()
    for repetition in range(_MAX_REPETITIONS):
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if repetition + 1 >= _MIN_REPETITIONS and now - started > _MAX_MEASUREMENT_S:
            break
    return best
