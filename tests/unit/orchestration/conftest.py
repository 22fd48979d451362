"""A deployment manager that runs for the length of a test."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.orchestration.manager_rig import Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.start()
    yield scene
    await scene.manager.stop()
    for replica in scene.fleet.replicas.values():
        if not replica.is_stopped:
            await replica.stop()
