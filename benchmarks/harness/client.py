"""The client as the scenarios use it: prompts, ways of decoding, timed responses, blocks of requests."""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.system import DEMO_MODELS, Service
from fly.request import DraftLength, SamplingParams, SpeculationParams
from fly.response import Response, Statistics
from fly.types import Mode
from flyserve.bench.statistics import mean_tau
from flyserve.bench.tasks import load_tasks, render
from flyserve.client import Client
from router.text.tokenizer import Tokenizer

Prompts = tuple[tuple[int, ...], ...]
_TIMEOUT_S = 600.0
_MAX_NEW_TOKENS = 512


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


def generate_all(
    client: Client, prompts: Sequence[Sequence[int]], *arguments: Any, **options: Any
) -> tuple[list[Response], float]:
    """Send the prompts at the same time, each as `generate` does; return the responses and all seconds."""
    start = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(lambda prompt: generate(client, prompt, *arguments, **options)[0], prompts))
    return found, time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Block:
    """Requests to one router.

    Attributes:
        setting: Name of the way of decoding.
        cpu_ms: CPU time of the router's process per emitted token.
        tokens: Emitted tokens.
        rounds: Rounds with and without a draft.
        tau: Tokens emitted in rounds with a draft, divided by the number of these rounds.
    """

    setting: str
    cpu_ms: float
    tokens: int
    rounds: int
    tau: float


def run_block(
    router: Service,
    setting: str,
    way: SpeculationParams,
    prompts: Sequence[Sequence[int]],
    at_once: int,
    max_new_tokens: int = _MAX_NEW_TOKENS,
    cache_salt: str = "",
    before_end: Callable[[], None] = lambda: None,
) -> Block:
    """Send requests, `at_once` at a time, and read the CPU clock of the router before and after.

    `before_end` runs after the last response and before the clock is read.

    Raises:
        FlyServeError: A request failed.
    """
    with Client(router.address, retries=0) as client, ThreadPoolExecutor(at_once) as pool:

        def send(prompt: Sequence[int]) -> Statistics:
            *_, last = client.stream(prompt, max_new_tokens, speculation=way, cache_salt=cache_salt)
            assert last.statistics is not None
            return last.statistics

        started_s = router.cpu_s()
        ended = list(pool.map(send, prompts))
        before_end()
        cpu_s = router.cpu_s() - started_s
    tokens = sum(each.emitted for each in ended)
    return Block(
        setting=setting,
        cpu_ms=1e3 * cpu_s / tokens,
        tokens=tokens,
        rounds=sum(each.rounds for each in ended),
        tau=mean_tau(ended),
    )
