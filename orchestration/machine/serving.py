"""The deployment of one line on this machine: its models by name, and what the machine settles."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.deployment.file import Deployment
from orchestration.deployment.one_line import OneLine, deployment_content, one_line_deployment
from orchestration.deployment.tiers import ModelTier
from orchestration.machine.facts import ModelFacts, read_facts
from orchestration.machine.settling import Facts, settled, settled_keys, settled_rollout
from services.common.gguf.header import is_gguf
from services.common.home import expanded
from services.common.hub import is_hub_name, resolve
from services.common.machine.machine import Machine, find_machine
from services.common.model_source import is_hub_id
from services.common.sections import advice_on
from services.engine.config import AUTO
from services.lookup.config import SUFFIX


def machine_with(gpus: int | str) -> Machine:
    """Return this machine with this number of its GPUs; `auto` is all of them.

    Raises:
        ConfigError: It has fewer, or torch cannot use them.
    """
    machine = find_machine()
    if gpus == AUTO:
        return machine
    if (number := int(gpus)) > len(machine.usable_gpus):
        reason = "" if machine.has_cuda or not machine.gpus else ", and torch is a build for CPUs alone"
        raise ConfigError(
            f"--gpus: is {number}, but this machine has {len(machine.gpus)} (CUDA_VISIBLE_DEVICES){reason}:"
            " lower it, or 0 computes on the CPU"
        )
    return replace(machine, gpus=machine.gpus[:number] if number else machine.gpus)


def settled_line(given: Mapping[str, Any], machine: Machine) -> tuple[dict[str, Any], Deployment]:
    """Return the content of the deployment file that a line stands for on this machine, and the deployment.

    `given` has the values of `OneLine`, with names of the hub as people write them.

    Raises:
        ConfigError: Options exclude each other, a model does not fit, or a folder is missing.
        ModelError: The hub has no such model, or it cannot be reached.
    """
    facts: dict[Role, ModelFacts] = {}
    names = dict(given)
    for option, role in (("target", Role.TARGET), ("draft", Role.DRAFTER)):
        if (name := given.get(option)) is not None and name != SUFFIX:
            names[option], facts[role] = _named(str(name), role)
    names["gpus"] = 0 if given.get("gpus") == 0 else AUTO
    content = deployment_content(OneLine(**names))
    found = settled_keys(one_line_deployment(content), machine, facts)
    for role, keys in found.items():
        content[role.value] = {**content[role.value], **keys}
    if rollout := settled_rollout(one_line_deployment(content), len(machine.usable_gpus)):
        content["rollout"] = rollout
    return content, one_line_deployment(content)


def settled_deployment(deployment: Deployment, machine: Machine) -> Deployment:
    """Return a deployment with the numbers of this machine in the place of `auto`."""
    return settled(deployment, machine, known_facts(deployment))


def known_facts(deployment: Deployment) -> Facts:
    """Return the properties of the models of a deployment whose folders are on this machine."""
    return {
        role: read_facts(tier.model)
        for role, tier in deployment.tiers.items()
        if isinstance(tier, ModelTier) and not is_hub_id(tier.model)
    }


def _named(name: str, role: Role) -> tuple[str, ModelFacts]:
    """Return a folder, a file, or a name of the hub with its commit, and the properties of the model."""
    folder = expanded(Path(name))
    if folder.is_dir() or (is_gguf(folder) and folder.is_file()):
        return name, read_facts(folder)
    if is_hub_name(name):
        model = resolve(name)
        facts = ModelFacts() if model.folder is None else read_facts(model.folder)
        return model.name, replace(facts, weight_bytes=model.weight_bytes)
    if is_gguf(folder) or "://" in name:
        return name, ModelFacts()  # the deployment's own check says why
    raise ConfigError(
        f"{role}.model: no folder {name}; a model of the hub is written org/name, a GGUF file of it"
        f" org/name:Q4_K_M or org/name/FILE.gguf{advice_on(name)}"
    )
