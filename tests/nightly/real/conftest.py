"""The real models, SmolLM2 in fp32 behind a router, and the same model in plain transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from demo.real.fetch import GEMMA3, SMOLLM2, RealModel, is_fetched, model_folder
from flyserve import Client
from tests.nightly.real.real_rig import MODEL_NAME, Reference
from tests.support.processes import ServiceProcess, service


@pytest.fixture(scope="session")
def folder() -> Path:
    return fetched(SMOLLM2)


@pytest.fixture(scope="session")
def gemma() -> Path:
    return fetched(GEMMA3)


def fetched(model: RealModel) -> Path:
    if not is_fetched(model):
        pytest.skip(f"{model.title} is not here: `make real` fetches it")
    return model_folder(model)


@pytest.fixture(scope="session")
def target(folder: Path) -> Iterator[ServiceProcess]:
    size = ("--dtype", "float32", "--threads", "1", "--max-sequences", "16", "--kv-tokens", "16384")
    with service("services.target", "--model", str(folder), *size) as target:
        yield target


@contextmanager
def router_of(target: ServiceProcess, folder: Path, *flags: str) -> Iterator[ServiceProcess]:
    ports = ("--grpc-port", "0", "--http-port", "0", "--model-name", MODEL_NAME)
    with service("router", "--model", str(folder), "--target", target.address, *ports, *flags) as router:
        yield router


@contextmanager
def openai_client(router: ServiceProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{router.urls[0]}/v1", api_key="none", max_retries=0, timeout=600) as client:
        yield client


@pytest.fixture(scope="session")
def router(target: ServiceProcess, folder: Path) -> Iterator[ServiceProcess]:
    with router_of(target, folder) as router:
        yield router


@pytest.fixture(scope="session")
def client(router: ServiceProcess) -> Iterator[Client]:
    with Client(router.address, retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def http(router: ServiceProcess) -> Iterator[OpenAI]:
    with openai_client(router) as client:
        yield client


@pytest.fixture(scope="session")
def tools_http(target: ServiceProcess, folder: Path) -> Iterator[OpenAI]:
    """Return a client of a router whose chat template takes tools; SmolLM2's own does not."""
    template = Path(__file__).with_name("chatml_tools.jinja")
    flags = ("--chat-template", str(template), "--tool-parser", "hermes")
    with router_of(target, folder, *flags) as router, openai_client(router) as client:
        yield client


@pytest.fixture(scope="session")
def reference(folder: Path) -> Reference:
    return Reference(folder)
