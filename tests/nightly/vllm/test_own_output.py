"""Plain and exact responses through the whole stack are vLLM's own greedy output."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from benchmarks.scenarios.peers.vllm_peer import offline_vllm
from demo.tasks import Task, load_tasks
from demo.tokenizer import render
from flyserve import Client, SpeculationParams
from flyserve.core.request import SamplingParams
from flyserve.core.types import Mode
from tests.nightly.vllm.vllm_rig import vllm_python
from tests.support.comparison import assert_only_a_tie, differences, gap_after, prompt_ids
from tests.support.processes import TARGET_MODEL

NEW_TOKENS, STREAMS = 200, (1, 16)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return load_tasks(max(STREAMS))


@pytest.fixture(scope="module")
def own(router: str, tasks: list[Task]) -> list[list[int]]:
    """Return the tokens of vLLM's own offline engine."""
    with offline_vllm(vllm_python(), TARGET_MODEL, "float32", 1, "null", ()) as decode:
        return [list(decode(prompt, NEW_TOKENS).tokens) for prompt in prompt_ids(router, tasks)]


def through_the_stack(router: str, tasks: list[Task], mode: Mode) -> list[list[int]]:
    """Return the tokens of concurrent responses."""
    sampling, speculation = SamplingParams(ignore_eos=True), SpeculationParams(mode=mode)
    with Client(router) as client, ThreadPoolExecutor(len(tasks)) as pool:

        def respond(task: Task) -> list[int]:
            response = client.generate(render(task.prompt), NEW_TOKENS, sampling, speculation)
            return [token.id for token in response.tokens]

        return list(pool.map(respond, tasks))


@pytest.fixture(scope="module")
def ended(reference: LlamaForCausalLM) -> Iterator[Any]:
    end = reference.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    yield lambda response: response[: response.index(end) + 1] if end in response else response


@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("mode", [Mode.PLAIN, Mode.EXACT])
def test_responses_are_vllms_own_greedy_output(
    router: str,
    own: list[list[int]],
    tasks: list[Task],
    reference: LlamaForCausalLM,
    ended: Any,
    mode: Mode,
    streams: int,
) -> None:
    found, expected = through_the_stack(router, tasks[:streams], mode), own[:streams]
    prompts = prompt_ids(router, tasks[:streams])
    # Beyond the end of its answer the model has nothing to say, and many tokens tie.
    pairs = [[ended(response) for response in each] for each in (expected, found)]
    assert_only_a_tie(
        differences(*pairs, lambda p, position: gap_after(reference, prompts[p] + pairs[0][p][:position]))
    )
