"""For all tests: a busy machine may take its time over an example; Ray has its token from the start."""

import os

import pytest
from hypothesis import settings

from orchestration.local.local_ray import prepare_environment
from tests.support.xdist_groups import Stations, rank

# NOTE: continuous integration judges a change, so it tries the same examples each time; people try new ones.
settings.register_profile("flyserve", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("flyserve")

# NOTE: Ray reads it once per process, with its first import, whichever test that comes with.
prepare_environment()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Stations | None:
    return Stations(config, log) if config.getvalue("dist") == "loadfile" else None
