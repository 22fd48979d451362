"""With real weights: the demo drafter under other token ids, and one trained with another tokenizer."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from demo import MODELS
from demo.tasks import Task
from fly.response import Response
from fly.types import Mode
from flyserve import SpeculationParams
from tests.support.comparison import PlainResponses, answers, ids_of
from tests.support.processes import (
    DRAFTER_MODEL,
    TARGET_MODEL,
    Deployment,
    ServiceProcess,
    router_of,
    service,
)

NUM_PROBLEMS = 5
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


@contextmanager
def foreign_router(deployment: Deployment, drafter_model: Path) -> Iterator[ServiceProcess]:
    """Yield a router in front of the deployment's targets, with a drafter that maps its vocabulary."""
    model = ("--model", str(drafter_model), "--dtype", "float32", "--threads", "1")
    mapped = ("--vocabulary", "text", "--target-tokenizer", str(TARGET_MODEL))
    with (
        service("services.drafter", *model, *mapped) as drafter,
        router_of(deployment.targets, drafter) as router,
    ):
        yield router


@pytest.fixture(scope="module")
def tasks(problems: list[Task]) -> list[Task]:
    return problems[:NUM_PROBLEMS]


@pytest.fixture(scope="module")
def own_tau(deployment: Deployment, tasks: list[Task]) -> float:
    """Tokens per draft round with the drafter that shares the target's vocabulary."""
    return tau(answers(deployment.router.address, tasks, EXACT))


@pytest.fixture(scope="module")
def plain(deployment: Deployment, tasks: list[Task], target: LlamaForCausalLM) -> PlainResponses:
    return PlainResponses(deployment.router.address, tasks, target)


def test_exact_equals_plain_and_drafts_are_as_good(
    deployment: Deployment,
    tasks: list[Task],
    own_tau: float,
    plain: PlainResponses,
    tmp_path: Path,
) -> None:
    with foreign_router(deployment, renumbered(tmp_path / "drafter")) as router:
        foreign = answers(router.address, tasks, EXACT)
    plain.assert_equals([ids_of(each) for each in foreign])
    assert tau(foreign) >= 0.8 * own_tau


def test_a_drafter_with_another_tokenizer_is_exact_and_accepted_loosely(
    deployment: Deployment,
    tasks: list[Task],
    plain: PlainResponses,
) -> None:
    with foreign_router(deployment, MODELS / "foreign_drafter") as router:
        exact = answers(router.address, tasks, EXACT)
        loose = answers(router.address, tasks, SpeculationParams(mode=Mode.FLY))
    plain.assert_equals([ids_of(each) for each in exact])
    assert tau(exact) > 2.0
    rescued = [choice.statistics.rescued for each in loose for choice in each.choices]
    assert sum(rescued) > 0 and tau(loose) > tau(exact)
