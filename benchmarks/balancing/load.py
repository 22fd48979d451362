"""Requests that share prefixes, some of them much more often than others, and what became of them."""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.balancing.system import VOCAB_SIZE, System
from fly.blocks import BLOCK_TOKENS
from protos.flyserve.v1 import generation_pb2 as pb
from protos.flyserve.v1.generation_pb2_grpc import GenerationStub

_FIRST_WORD = 16
SEQUENCE_TOKENS = 192
"""What a replica reserves for one sequence of the load below, open or cached."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked.

    Attributes:
        requests: In all.
        clients: Each asks again as soon as it is answered.
        prefixes: Different ones.
        exponent: Of Zipf's law: the k-th prefix comes in proportion to k ** -exponent.
        prefix_blocks: Of one prefix.
        own_tokens: Of each request, after its prefix.
        new_tokens: Of each response; with the own tokens they fill no block.
        seed: Of the prefixes and their order.
    """

    requests: int = 400
    clients: int = 4
    prefixes: int = 20
    exponent: float = 0.7
    prefix_blocks: int = 11
    own_tokens: int = 8
    new_tokens: int = 4
    seed: int = 0

    def prompts(self) -> Iterator[list[int]]:
        """All of them, in order."""
        source = random.Random(self.seed)
        prefixes = [_words(source, self.prefix_blocks * BLOCK_TOKENS) for _ in range(self.prefixes)]
        weights = [(rank + 1) ** -self.exponent for rank in range(self.prefixes)]
        for prefix in source.choices(prefixes, weights, k=self.requests):
            yield prefix + _words(source, self.own_tokens)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy made of a load, by the engines' own counters.

    Attributes:
        hit_rate: Share of prompt tokens that were taken from a cache.
        busiest: Prompt tokens of the replica that had the most, as a multiple of the mean.
    """

    hit_rate: float
    busiest: float


async def play(system: System, load: Load, advance: Callable[[], None] = lambda: None) -> Outcome:
    """Asks everything; `advance` is called after each request."""
    prompts, stub = load.prompts(), GenerationStub(system.channel)

    async def ask() -> None:
        for prompt in prompts:
            request = pb.GenerateRequest(
                prompt_token_ids=pb.TokenIds(ids=prompt),
                max_new_tokens=load.new_tokens,
                speculation=pb.SpeculationParams(mode=pb.MODE_PLAIN),
            )
            await stub.Generate(request)
            advance()

    await asyncio.gather(*(ask() for _ in range(load.clients)))
    return _outcome(system)


def _outcome(system: System) -> Outcome:
    loads = [engine.load() for engine in system.engines]
    totals = [load.reused_tokens + load.prefill_tokens for load in loads]
    reused = sum(load.reused_tokens for load in loads)
    return Outcome(reused / sum(totals), max(totals) * len(totals) / sum(totals))


def _words(source: random.Random, count: int) -> list[int]:
    return [source.randrange(_FIRST_WORD, VOCAB_SIZE) for _ in range(count)]
