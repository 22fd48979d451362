"""Plain and exact responses through the whole stack are vLLM's own greedy output; prints their speeds."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from transformers import LlamaForCausalLM

from benchmarks.scenarios.peers.vllm_peer import offline_vllm
from demo.tasks import Task, load_tasks
from demo.tokenizer import render
from fly.request import SamplingParams
from fly.types import Mode
from flyserve import Client, SpeculationParams
from tests.nightly.vllm.vllm_rig import vllm_python
from tests.support.comparison import assert_only_a_tie, differences, gap_after, prompt_ids
from tests.support.processes import TARGET_MODEL

NEW_TOKENS, STREAMS = 200, (1, 16)


class Own(NamedTuple):
    """vLLM's own output: the tokens of each stream, and their number per second."""

    tokens: list[list[int]]
    per_s: float


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return load_tasks(max(STREAMS))


@pytest.fixture(scope="module")
def own(router: str, tasks: list[Task]) -> dict[int, Own]:
    """Return tokens and speed of vLLM's own offline engine, by number of streams."""
    prompts, found = prompt_ids(router, tasks), dict[int, Own]()
    with offline_vllm(vllm_python(), TARGET_MODEL, "float32", max(STREAMS), ()) as engine:
        for count in STREAMS:
            engine.decode_all(prompts[:count], NEW_TOKENS)
            tokens, seconds = engine.decode_all(prompts[:count], NEW_TOKENS)
            found[count] = Own(tokens, sum(map(len, tokens)) / seconds)
    return found


def through_the_stack(router: str, tasks: list[Task], mode: Mode) -> tuple[list[list[int]], float]:
    """Return the tokens of concurrent responses, and their number per second."""
    sampling, speculation = SamplingParams(ignore_eos=True), SpeculationParams(mode=mode)
    with Client(router) as client, ThreadPoolExecutor(len(tasks)) as pool:

        def respond(task: Task) -> list[int]:
            response = client.generate(render(task.prompt), NEW_TOKENS, sampling, speculation)
            return [token.id for token in response.tokens]

        list(pool.map(respond, tasks))
        started = time.perf_counter()
        tokens = list(pool.map(respond, tasks))
        return tokens, sum(map(len, tokens)) / (time.perf_counter() - started)


@pytest.fixture(scope="module")
def ended(reference: LlamaForCausalLM) -> Iterator[Any]:
    end = reference.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    yield lambda response: response[: response.index(end) + 1] if end in response else response


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("mode", [Mode.PLAIN, Mode.EXACT])
def test_responses_are_vllms_own_greedy_output(
    router: str,
    own: dict[int, Own],
    tasks: list[Task],
    reference: LlamaForCausalLM,
    ended: Any,
    mode: Mode,
    streams: int,
) -> None:
    found, per_s = through_the_stack(router, tasks[:streams], mode)
    expected = own[streams]
    print(f"{mode} at {streams}: {per_s:.1f} tokens/s, vLLM alone {expected.per_s:.1f}")
    prompts = prompt_ids(router, tasks[:streams])
    # Beyond the end of its answer the model has nothing to say, and many tokens tie.
    pairs = [[ended(response) for response in each] for each in (expected.tokens, found)]
    assert_only_a_tie(
        differences(*pairs, lambda p, position: gap_after(reference, prompts[p] + pairs[0][p][:position]))
    )
