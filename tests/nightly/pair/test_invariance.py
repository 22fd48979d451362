"""With real weights in fp32: an exact response depends on nothing but the target, the prompt and the seed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.tasks import Task
from demo.tokenizer import render
from flyserve import Client, DraftLength, SamplingParams, SpeculationParams
from flyserve.core.types import Mode
from tests.support.comparison import CONCURRENCY, MAX_NEW_TOKENS, PlainResponses, responses, seed_of
from tests.support.processes import TARGET_MODEL, Deployment, one_more_target, router_of, service

NUM_PROBLEMS = 8
TEMPERATURES = (0.0, 0.8)
EXACT = SpeculationParams(mode=Mode.EXACT)


@pytest.fixture(scope="module", params=TEMPERATURES, ids=lambda temperature: f"temperature {temperature}")
def expected(
    request: pytest.FixtureRequest, deployment: Deployment, problems: list[Task], target: LlamaForCausalLM
) -> PlainResponses:
    """The plain responses, computed one at a time."""
    some, sampling = problems[:NUM_PROBLEMS], SamplingParams(temperature=request.param)
    return PlainResponses(deployment.router.address, some, target, sampling, concurrency=1)


@pytest.fixture(scope="module")
def clumsy_router(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A router with the same targets and an untrained drafter that is almost never right."""
    folder = tmp_path_factory.mktemp("clumsy")
    save_untrained(folder)
    flags = ("--model", str(folder), "--dtype", "float32")
    with (
        service("services.drafter", *flags) as drafter,
        router_of(deployment.targets, drafter) as router,
    ):
        yield router.address


def save_untrained(folder: Path) -> None:
    torch.manual_seed(3)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TARGET_MODEL)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


LENGTHS = {f"drafts of {most}": replace(EXACT, draft_length=DraftLength(max=most)) for most in (0, 1, 25)}
WAYS = {
    "alone": EXACT,
    "in a batch": EXACT,
    "without the sub-drafter": replace(EXACT, sub_drafter=False),
    **LENGTHS,
}


@pytest.mark.parametrize("way", WAYS)
def test_in_any_way(deployment: Deployment, expected: PlainResponses, way: str) -> None:
    at_once = 1 if way == "alone" else CONCURRENCY
    router = deployment.router.address
    expected.assert_equals(responses(router, expected.problems, WAYS[way], expected.sampling, at_once))


def test_with_another_drafter(clumsy_router: str, expected: PlainResponses) -> None:
    # NOTE: short drafts: all of them cost forwards, and none gives a token.
    speculation = replace(EXACT, draft_length=DraftLength(max=2))
    expected.assert_equals(responses(clumsy_router, expected.problems, speculation, expected.sampling))


def test_without_a_drafter(deployment: Deployment, expected: PlainResponses) -> None:
    with router_of(deployment.targets) as router:
        expected.assert_equals(responses(router.address, expected.problems, EXACT, expected.sampling))


def test_with_a_target_killed_half_way(deployment: Deployment, expected: PlainResponses) -> None:
    with (
        one_more_target() as victim,
        # By prefix, all of so few requests may go to the other target.
        router_of(
            [victim, deployment.targets[0]], deployment.drafter, "--balancing", "round_robin"
        ) as router,
        Client(router.address) as client,
    ):
        streams = [
            client.stream(
                render(task.prompt),
                MAX_NEW_TOKENS,
                replace(expected.sampling, seed=seed_of(number)),
                SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=1)),
            )
            for number, task in enumerate(expected.problems)
        ]
        chunks = [[next(stream)] for stream in streams]
        victim.kill()
        for received, stream in zip(chunks, streams, strict=True):
            received.extend(stream)
    last = [received[-1].statistics for received in chunks]
    assert sum(statistics.replays for statistics in last if statistics is not None) > 0
    expected.assert_equals(
        [[token.id for chunk in received for token in chunk.tokens] for received in chunks]
    )
