"""The client as the scenarios use it: prompts, ways of decoding, timed responses."""

import random
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.system import DEMO_MODELS
from flyserve.bench.tasks import load_tasks, render
from flyserve.client import Client
from flyserve.core.request import DraftLength, SamplingParams, SpeculationParams
from flyserve.core.response import Response
from flyserve.core.types import Mode
from router.text.tokenizer import Tokenizer

Prompts = tuple[tuple[int, ...], ...]
_TIMEOUT_S = 600.0


def speculation(
    mode: Mode,
    draft_length: int | None = None,
    sub_drafter: bool | None = None,
    preset: str | None = None,
) -> SpeculationParams:
    """Return a way of decoding; what is None is left to the deployment."""
    return SpeculationParams(
        mode=mode,
        preset=preset,
        draft_length=DraftLength(draft_length),
        sub_drafter=sub_drafter,
    )


PLAIN = speculation(Mode.PLAIN)


def ways_by_mode(draft_length: int | None = None) -> dict[str, SpeculationParams]:
    """Return plain, exact and FLy decoding by name."""
    drafting = {"exact": Mode.EXACT, "FLy": Mode.FLY}
    return {"plain": PLAIN, **{name: speculation(mode, draft_length) for name, mode in drafting.items()}}


def demo_prompts(count: int) -> Prompts:
    """Return the first `count` shipped problems, as tokens of the demo pair."""
    tokenizer = Tokenizer.load(DEMO_MODELS / "target")
    return tuple(tokenizer.encode(render(task.prompt)) for task in load_tasks(count))


def random_prompts(words: range, count: int, num_tokens: int = 64, seed: int = 7) -> Prompts:
    """Return the same prompts in every run; a smaller count gives the first ones of a larger count."""
    rng = random.Random(seed)
    return tuple(tuple(rng.choices(words, k=num_tokens)) for _ in range(count))


def generate(
    client: Client,
    prompt: Sequence[int] | str,
    max_new_tokens: int,
    way: SpeculationParams,
    cache_salt: str = "",
    sampling: SamplingParams | None = None,
    **options: Any,
) -> tuple[Response, float]:
    """Return a response and its seconds, from the call to the whole response.

    Raises:
        FlyServeError: The request was rejected.
    """
    start = time.perf_counter()
    response = client.generate(
        prompt, max_new_tokens, sampling, way, timeout_s=_TIMEOUT_S, cache_salt=cache_salt, **options
    )
    return response, time.perf_counter() - start
