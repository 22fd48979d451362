"""Fixtures of tests on Ray."""

from collections.abc import Iterator

import pytest

from tests.nightly.ray.cluster_rig import Nodes, model, three_nodes
from tests.support.local_ray import deployment, small
from tests.support.ray_leftovers import _leaves_nothing

__all__ = ["_leaves_nothing", "deployment", "small"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Three nodes for all tests of a module."""
    with three_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two simulated targets with other weights, and a drafter."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "a": model(folder, "a", seed=1),
        "b": model(folder, "b", seed=2),
        "drafter": model(folder, "drafter", seed=1, agreement=0.7, base_s=0.002),
    }
