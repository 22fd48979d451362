"""Auxiliary sequences that teach copying, recall and sums early in training."""

import random

from demo.corpus.lookups import draw_badge
from demo.corpus.wording import CITIES, NAMES, THINGS, VARIABLES


def repetition(rng: random.Random) -> tuple[str, str]:
    """Draw a prompt and its response: pairs to recall in a new order, or items to copy."""
    return rng.choice((_recall, _recall, _copy))(rng)


def sums(rng: random.Random) -> tuple[str, str]:
    """Draw a prompt and its response: sums, differences and products below 100 to compute."""
    drawn = [_sum(rng) for _ in range(rng.randint(4, 8))]
    tasks = ", ".join(task for task, _ in drawn)
    results = ", ".join(f"{task} = {result}" for task, result in drawn)
    return f"Compute {tasks}.", f"{results}."


def _value(rng: random.Random) -> str:
    return draw_badge(rng) if rng.random() < 0.5 else str(rng.randint(0, 99))


def _recall(rng: random.Random) -> tuple[str, str]:
    keys = rng.sample(NAMES, 8) if rng.random() < 0.6 else rng.sample(VARIABLES, 8)
    pairs = [f"{key} {_value(rng)}" for key in keys[: rng.randint(3, 8)]]
    recalled = rng.sample(pairs, len(pairs))
    return "Recall " + ", ".join(pairs) + ".", ", ".join(recalled) + "."


def _copy(rng: random.Random) -> tuple[str, str]:
    items = [
        rng.choice((*NAMES, *CITIES, *THINGS, *VARIABLES, _value(rng))) for _ in range(rng.randint(5, 20))
    ]
    items = [_value(rng) if rng.random() < 0.4 else item for item in items]
    return "Copy " + " ".join(items) + ".", " ".join(items) + "."


def _sum(rng: random.Random) -> tuple[str, int]:
    if rng.random() < 0.1:
        factor = rng.randint(2, 3)
        number = rng.randint(1, 99 // factor)
        return f"{number} * {factor}", number * factor
    high, low = sorted((rng.randint(1, 99), rng.randint(1, 60)), reverse=True)
    if rng.random() < 0.5:
        return f"{high} - {low}", high - low
    return f"{low} + {high - low}", high
