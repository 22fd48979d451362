"""The whole gRPC stack: Ray, controller, one target, drafter, sub-drafter and router, one thread each."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

from benchmarks.deployed import deployed
from benchmarks.peers.pairs import Pair
from benchmarks.peers.settings import DRAFT_LENGTH, STACK_SPECULATIONS, Answer, Decode
from flyserve.client import Client
from orchestration.deployment.file import (
    Deployment,
    DrafterTier,
    RouterTier,
    SubDrafterTier,
    TargetTier,
)
from router.config import DraftLengthConfig, SpeculationConfig
from services.engine.config import Dtype

MOST_STREAMS = 16
_KV_TOKENS = 16_384
_TIMEOUT_S = 600.0


@contextmanager
def running_stack(pair: Pair, dtype: str, verbose: bool = False) -> Iterator[Client]:
    """A client of the pair's deployment, which runs while the block does.

    Raises:
        FlyServeError: It cannot be started.
    """
    what = f"the {pair.name} pair's services"
    with deployed(make_deployment(pair, dtype), what, verbose) as address, Client(address) as client:
        yield client


def make_deployment(pair: Pair, dtype: str) -> Deployment:
    """One replica of each tier."""
    size = {"dtype": Dtype(dtype), "max_sequences": MOST_STREAMS, "kv_tokens": _KV_TOKENS, "threads": 1}
    return Deployment(
        target=TargetTier(model=pair.target, **size),
        drafter=DrafterTier(model=pair.drafter, **size),
        sub_drafter=SubDrafterTier(engine="ngram"),
        router=RouterTier(grpc_port=0, max_concurrent=MOST_STREAMS),
        speculation=SpeculationConfig(draft_length=DraftLengthConfig(max=DRAFT_LENGTH)),
    )


def stack_decoder(client: Client, method: str) -> Decode:
    """Decoding through the stack, timed where a user would."""

    def decode(prompt: Sequence[int], max_new_tokens: int) -> Answer:
        start = time.perf_counter()
        response = client.generate(
            prompt,
            max_new_tokens,
            speculation=STACK_SPECULATIONS[method],
            timeout_s=_TIMEOUT_S,
            cache_salt=uuid4().hex,  # so that no setting profits from what another has computed of the prompt
        )
        seconds = time.perf_counter() - start
        tokens = tuple(token.id for token in response.tokens)
        return Answer(tokens, seconds, response.statistics.tau or None)

    return decode


def streams_rate(decode: Decode, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> float:
    """Tokens per second of all prompts together, decoded at once, until the last has ended."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        start = time.perf_counter()
        answers = list(pool.map(lambda prompt: decode(prompt, max_new_tokens), prompts))
        seconds = time.perf_counter() - start
    return sum(len(answer.tokens) for answer in answers) / seconds
