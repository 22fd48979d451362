"""Every package that an installation brings is pinned: no new one is installed unnoticed."""

import re
from itertools import chain

from packaging.utils import canonicalize_name

from tests.support.requirements import BASE, EXTRAS, ROOT, needed

_OF_CUDA = ("cuda-", "nvidia-", "triton")
"""Packages of torch's build for CUDA, which pins them itself; the build for CPUs has none."""


def test_the_constraints_pin_all_that_an_installation_brings() -> None:
    pinned = {
        canonicalize_name(name)
        for name in re.findall(r"^([\w.-]+)==\S+$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    }
    brought = needed([*BASE, *chain(*EXTRAS.values())])
    assert {name for name in brought - pinned if not name.startswith(_OF_CUDA)} == set()


def test_only_the_engine_brings_torch_and_only_the_cluster_brings_ray() -> None:
    brings = {extra: needed([f"flyserve[{extra}]"]) for extra in EXTRAS if extra != "dev"}
    assert {extra for extra, names in brings.items() if "torch" in names} == {"engine"}
    assert {extra for extra, names in brings.items() if "ray" in names} == {"ray", "cluster"}
    assert {extra for extra, names in brings.items() if "transformers" in names} == {"router", "engine"}


def test_a_client_needs_grpc_and_protobuf_alone() -> None:
    assert needed(BASE) <= {
        "googleapis-common-protos",
        "grpcio",
        "protobuf",
        "typing-extensions",
    }
