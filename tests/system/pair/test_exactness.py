"""With real weights in fp32: exact equals plain, and `official` equals the published loop."""

import pytest
import torch
from transformers import LlamaForCausalLM

from demo.tasks import Task
from flyserve import DraftLength, SamplingParams, SpeculationParams
from flyserve.core.types import Mode
from tests.support.comparison import (
    MAX_NEW_TOKENS,
    PlainResponses,
    assert_only_a_tie,
    differences,
    gap_after,
    prompt_ids,
    responses,
)
from tests.support.official_loop import Greedy, official_response
from tests.support.processes import DRAFTER_MODEL, Deployment


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_exact_speculation_equals_plain_decoding(
    deployment: Deployment, problems: list[Task], target: LlamaForCausalLM, temperature: float
) -> None:
    router, sampling = deployment.router.address, SamplingParams(temperature=temperature)
    plain = PlainResponses(router, problems, target, sampling)
    plain.assert_equals(responses(router, problems, SpeculationParams(mode=Mode.EXACT), sampling))


@pytest.mark.timeout(1800)
def test_official_equals_the_published_loop(
    deployment: Deployment, problems: list[Task], target: LlamaForCausalLM
) -> None:
    drafter = LlamaForCausalLM.from_pretrained(DRAFTER_MODEL, dtype=torch.float32).eval()
    official = SpeculationParams(mode=Mode.FLY, preset="official", draft_length=DraftLength(max=15))
    served = responses(deployment.router.address, problems, official)
    end = target.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    prompts = prompt_ids(deployment.router.address, problems)
    reference = [
        official_response(Greedy(target), Greedy(drafter), prompt, end, MAX_NEW_TOKENS) for prompt in prompts
    ]

    def gap(problem: int, position: int) -> float:
        return gap_after(target, prompts[problem] + reference[problem][:position])

    assert_only_a_tie(differences(reference, served, gap))
