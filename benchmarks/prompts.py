"""What the pairs are asked: held-out problems, or random tokens where no text is known."""

import random

from benchmarks.paths import DEMO_MODELS
from demo.tasks import load_tasks
from demo.tokenizer import render
from router.text.tokenizer import Tokenizer

Prompts = tuple[tuple[int, ...], ...]

_PROMPT_TOKENS = 64
_SEED = 7


def demo_prompts(count: int) -> Prompts:
    """The first `count` shipped problems, as tokens of the demo pair."""
    tokenizer = Tokenizer.load(DEMO_MODELS / "target")
    return tuple(tokenizer.encode(render(task.prompt)) for task in load_tasks(count))


def random_prompts(vocab_size: int, count: int) -> Prompts:
    """The same for every run; a smaller count gives the first of a larger one's."""
    rng = random.Random(_SEED)
    return tuple(tuple(rng.choices(range(vocab_size), k=_PROMPT_TOKENS)) for _ in range(count))
