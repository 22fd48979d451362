"""Import vLLM on first use."""

import os
from collections.abc import Collection, Mapping

from flyserve.core.errors import ModelError, describe

TESTED = "0.32.0"
"""The version of vLLM that the tests run, in its build for CPUs."""


def load_library(device: str, environment: Mapping[str, str]) -> Collection[str]:
    """Import vLLM; return the names of its engine's arguments.

    vLLM reads `environment`, variables and their values, while it is imported.

    Raises:
        ModelError: vLLM is missing, cannot be imported, or is built for another device.
    """
    os.environ.update(environment)
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
    except ImportError as error:
        hint = "" if getattr(error, "name", "") == "vllm" else f" ({describe(error)})"
        raise ModelError(
            f"engine is vllm, but vLLM cannot be imported here{hint}: install flyserve[vllm] with"
            f" constraints-vllm.txt (vLLM {TESTED})"
        ) from error
    built_for = str(current_platform.device_type)
    if built_for != device:
        raise ModelError(f"device is {device}, but this vLLM is built for {built_for or 'no device'}")
    names: Collection[str] = EngineArgs.__dataclass_fields__.keys()
    return names
