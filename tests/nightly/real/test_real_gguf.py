"""GGUF files as they ship, served by one line: exact equals plain, but for near ties."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.real.fetch import GEMMA3, SMOLLM2, RealModel, gguf_file, is_fetched, source_file
from flyserve import Client, SpeculationParams
from flyserve.cli.up import running_deployment
from flyserve.core.response import Response
from flyserve.core.types import Mode
from orchestration.deployment.one_line import OneLine, deployment_content, one_line_deployment
from orchestration.local.runner import LocalDeployment
from tests.nightly.real.prompts import PROMPTS

pytestmark = pytest.mark.timeout(3600)

MAX_NEW_TOKENS = 64
ASKED = PROMPTS[:20]
MOST_TIES = 5
"""Responses that may part where two logits are close: the order of KV cells changes attention; 3 did so."""


def here(model: RealModel, file: Path) -> Path:
    if not is_fetched(model):
        pytest.skip(f"{model.title} is not here: `make real` fetches it")
    return file


@pytest.fixture(scope="module", params=["q4_1", "f16", "gemma"])
def deployed(request: pytest.FixtureRequest) -> Iterator[LocalDeployment]:
    """Yield the deployment of `flyserve serve FILE --draft suffix`."""
    files = {"q4_1": (SMOLLM2, source_file(SMOLLM2)), "f16": (SMOLLM2, gguf_file(SMOLLM2))}
    file = here(*({**files, "gemma": (GEMMA3, source_file(GEMMA3))}[request.param]))
    line = OneLine(target=str(file), draft="suffix", threads=1, port=0, grpc_port=0)
    with running_deployment(one_line_deployment(deployment_content(line)), 600, False, "tests") as deployed:
        yield deployed


@pytest.fixture(scope="module")
def client(deployed: LocalDeployment) -> Iterator[Client]:
    with Client(deployed.address, retries=0) as client:
        yield client


def respond(client: Client, mode: Mode) -> list[Response]:
    way = SpeculationParams(mode=mode)
    return [client.generate(text, MAX_NEW_TOKENS, speculation=way) for text in ASKED]


def ids_of(response: Response) -> list[int]:
    return [token.id for token in response.tokens]


def test_exact_equals_plain_but_for_ties_and_drafts_are_used(client: Client) -> None:
    plain, exact, fly = (respond(client, mode) for mode in (Mode.PLAIN, Mode.EXACT, Mode.FLY))
    assert sum(map(len, map(ids_of, plain))) > 200
    differing = sum(ids_of(one) != ids_of(other) for one, other in zip(exact, plain, strict=True))
    print(f"{differing} of {len(ASKED)} responses differ")
    assert differing <= MOST_TIES
    assert sum(response.statistics.draft_rounds for response in (*exact, *fly)) > 0
