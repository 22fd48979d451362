"""A client and a server of two versions name both, instead of ignoring fields that one does not know."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flyserve import AsyncClient, ConfigError
from flyserve.core.version import VERSION, version_fault
from flyserve.v1 import generation_pb2 as pb
from tests.contract.fakes import FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import PLAIN, Rig, make_request, running


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(save_tokenizer(tmp_path), [FakeTarget(HashModel())]) as rig:
        yield rig


@pytest.mark.parametrize("version", ["0.0.9", "0.2.0", "1.0.0", "odd"])
async def test_another_version_is_refused_in_every_call(
    version: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyserve.client_base.VERSION", version)
    async with AsyncClient(rig.addresses[0]) as client:
        for ask in (client.info, lambda: client.generate("the"), lambda: client.tokenize("the")):
            with pytest.raises(ConfigError, match=f"flyserve {version}, the server is version {VERSION}"):
                await ask()
        with pytest.raises(ConfigError, match=VERSION):
            await anext(client.stream("the"))


async def test_the_same_series_and_other_clients_are_served(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(await rig.stub.Generate(make_request(PLAIN)), pb.GenerateResponse)
    monkeypatch.setattr("flyserve.client_base.VERSION", f"{VERSION}99")
    async with AsyncClient(rig.addresses[0]) as client:
        assert (await client.generate("the", max_new_tokens=4)).text


@pytest.mark.parametrize(
    ("client", "server", "fits"), [("0.1.0", "0.1.7", True), ("1.2.0", "1.9", True), ("1", "2.0", False)]
)
def test_versions_fit_by_their_series(client: str, server: str, fits: bool) -> None:
    assert (version_fault(client, server) is None) is fits
