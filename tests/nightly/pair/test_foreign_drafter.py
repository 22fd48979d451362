"""With real weights: a drafter that was trained with another tokenizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from demo import MODELS
from demo.tasks import Task
from flyserve import SpeculationParams
from flyserve.core.response import Response
from flyserve.core.types import Mode
from tests.support.comparison import PlainResponses, answers, ids_of
from tests.support.processes import (
    TARGET_MODEL,
    Deployment,
    ServiceProcess,
    router_of,
    service,
)

NUM_PROBLEMS = 5
EXACT = SpeculationParams(mode=Mode.EXACT)


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
def plain(deployment: Deployment, tasks: list[Task], target: LlamaForCausalLM) -> PlainResponses:
    return PlainResponses(deployment.router.address, tasks, target)


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
