"""A Ray cluster of several nodes on this machine, for the length of a block."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestration.local.folder import temporary_folder
from orchestration.local.local_ray import prepare_environment
from tests.support.local_ray import FOLDER, HANG_S


@contextmanager
def ray_nodes(**head: Any) -> Iterator[tuple[Any, Path]]:
    """Start a head node; yield its cluster, to which nodes can be added, and the folder of Ray's files."""
    prepare_environment()
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ["PYTHONPATH"]]))
        patch.setattr(services, "get_node", _patient(services.get_node))
        (folder / "ray").mkdir()
        cluster = Cluster()
        try:
            cluster.add_node(**{"include_dashboard": False, **head})
            yield cluster, folder
        finally:
            ray.shutdown()
            cluster.shutdown()


def _patient(get_node: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    """Return a function that waits for a node: Ray fails 30 s after its start, too soon on a busy machine."""

    def get(gcs_address: str, node_id: str) -> Any:
        end = time.monotonic() + HANG_S
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    return get
