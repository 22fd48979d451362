"""With real weights: the demo drafter under a vocabulary of its own drafts as it does under the target's."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from demo.tasks import Task
from fly.response import Response
from fly.types import Mode
from flyserve import SpeculationParams
from tests.support.comparison import answers, assert_only_a_tie, differences, gap_after, ids_of, prompt_ids
from tests.support.processes import DRAFTER_MODEL, TARGET_MODEL, Deployment, router_of, service

pytestmark = pytest.mark.slow

NUM_PROBLEMS = 12
EXACT = SpeculationParams(mode=Mode.EXACT)


def renumbered(folder: Path) -> Path:
    """Return a copy of the demo drafter in which every token but the first has another id."""
    shutil.copytree(DRAFTER_MODEL, folder)
    spec = json.loads((folder / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    most = len(vocab)
    spec["model"]["vocab"] = {token: old and most - old for token, old in vocab.items()}
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    weights = load_file(folder / "model.safetensors")
    order = torch.tensor([0, *range(most - 1, 0, -1)])
    for name, weight in weights.items():
        if weight.shape[0] >= most and ("embed" in name or "lm_head" in name):
            weights[name] = torch.cat([weight[:most][order], weight[most:]]).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tau(found: list[Response]) -> float:
    stats = [choice.statistics for each in found for choice in each.choices]
    return sum(each.draft_round_tokens for each in stats) / sum(each.draft_rounds for each in stats)


@pytest.mark.parametrize("way", ["text", "intersection"])
def test_exact_equals_plain_and_drafts_are_as_good(
    deployment: Deployment, problems: list[Task], target: LlamaForCausalLM, way: str, tmp_path: Path
) -> None:
    own, problems = deployment.router.address, problems[:NUM_PROBLEMS]
    plain = [ids_of(each) for each in answers(own, problems, SpeculationParams(mode=Mode.PLAIN))]
    usual = answers(own, problems, EXACT)
    model = ("--model", str(renumbered(tmp_path / "drafter")), "--dtype", "float32", "--threads", "1")
    mapped = ("--vocabulary", way, "--target-tokenizer", str(TARGET_MODEL))
    with (
        service("services.drafter", *model, *mapped) as drafter,
        router_of(deployment.targets, drafter) as router,
    ):
        foreign = answers(router.address, problems, EXACT)
    prompts = prompt_ids(own, problems)
    assert_only_a_tie(
        differences(
            plain,
            [ids_of(each) for each in foreign],
            lambda p, position: gap_after(target, prompts[p] + plain[p][:position]),
        )
    )
    assert tau(foreign) >= 0.8 * tau(usual)
