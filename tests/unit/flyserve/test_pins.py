"""Every package that an installation brings is pinned: no new one is installed unnoticed."""

import re
from itertools import chain

from packaging.utils import canonicalize_name

from services.engine.vllm.library import VERSION
from tests.support.requirements import BASE, EXTRAS, OF_VLLM, ROOT, needed

_OF_CUDA = ("cuda-", "nvidia-", "triton")
"""Packages of torch's build for CUDA, which pins them itself; the build for CPUs has none."""


def pins(name: str) -> dict[str, str]:
    """Return the pinned version of each package in a file of constraints."""
    found = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / name).read_text("utf-8"), re.M)
    return {canonicalize_name(package): version for package, version in found}


def test_the_constraints_pin_all_that_an_installation_brings() -> None:
    extras = [needs for extra, needs in EXTRAS.items() if extra not in OF_VLLM]
    brought = needed([*BASE, *chain(*extras)])
    assert {
        name for name in brought - pins("constraints.txt").keys() if not name.startswith(_OF_CUDA)
    } == set()


def test_vllm_is_pinned_where_it_is_required_and_where_its_version_is_checked() -> None:
    pinned = pins("constraints-vllm.txt")
    assert {pinned[name] for name in OF_VLLM} == {VERSION}
    assert all(f"{name}=={VERSION}" in EXTRAS[name] for name in OF_VLLM)
    service = {name for name in needed(["flyserve[service]"]) if not name.startswith("flyserve")}
    assert service - pinned.keys() == set()


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
