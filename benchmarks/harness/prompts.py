"""Prompts: held-out problems of the demo, or random tokens for models without a text of their own."""

import random

from benchmarks.harness.system import DEMO_MODELS
from flyserve.bench.tasks import load_tasks, render
from router.text.tokenizer import Tokenizer

Prompts = tuple[tuple[int, ...], ...]


def demo_prompts(count: int) -> Prompts:
    """Return the first `count` shipped problems, as tokens of the demo pair."""
    tokenizer = Tokenizer.load(DEMO_MODELS / "target")
    return tuple(tokenizer.encode(render(task.prompt)) for task in load_tasks(count))


def random_prompts(words: range, count: int, num_tokens: int = 64, seed: int = 7) -> Prompts:
    """Return the same prompts in every run; a smaller count gives the first ones of a larger count."""
    rng = random.Random(seed)
    return tuple(tuple(rng.choices(words, k=num_tokens)) for _ in range(count))
