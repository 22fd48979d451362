"""Import vLLM: the one version that this package supports, on first use."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fly.errors import ModelError, describe

VERSION = "0.32.0"
"""The version of vLLM whose private parts `front_end.py` and `scheduler.py` know."""


@dataclass(frozen=True, slots=True)
class Library:
    """The parts of vLLM that an engine uses; tests give others.

    Attributes:
        engine_class: vLLM's `AsyncLLM`.
        arguments_class: vLLM's `AsyncEngineArgs`.
        params_class: vLLM's `SamplingParams`.
        final_only: Kind of output that is sent once, at the end of a request.
        delta: Kind of output that is sent with every new token.
        device: Device of this build: `cpu` or `cuda`.
        version: Version of vLLM.
    """

    engine_class: Any
    arguments_class: Any
    params_class: Any
    final_only: Any
    delta: Any
    device: str
    version: str = VERSION


def load_library(device: str, environment: Mapping[str, str]) -> Library:
    """Import vLLM, and make its front end keep only the rows that are asked for.

    vLLM reads `environment`, variables and their values, while it is imported.

    Raises:
        ModelError: vLLM is missing, cannot be imported, has another version, or is built for another device.
    """
    os.environ.update(environment)
    try:
        import vllm
    except ImportError as error:
        hint = "" if getattr(error, "name", "") == "vllm" else f" ({describe(error)})"
        raise ModelError(
            f"engine is vllm, but vLLM {VERSION} is not installed here{hint}: install flyserve[vllm]"
            " with constraints-vllm.txt"
        ) from error
    check_version(getattr(vllm, "__version__", "unknown"))
    try:
        return _library(device)
    except ImportError as error:
        raise ModelError(f"vLLM {VERSION} cannot be imported: {describe(error)}") from error


def check_version(found: str) -> None:
    """Raise `ModelError` unless `found` is the supported version, in whatever build."""
    if found.partition("+")[0] != VERSION:
        raise ModelError(f"vLLM {found} is installed, this version of FlyServe needs vLLM {VERSION}")


def _library(device: str) -> Library:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from services.engine.vllm.front_end import install

    built_for = str(current_platform.device_type)
    if built_for != device:
        raise ModelError(f"device is {device}, but this vLLM is built for {built_for or 'no device'}")
    install()
    final_only, delta = RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA
    return Library(AsyncLLM, AsyncEngineArgs, SamplingParams, final_only, delta, built_for)
