"""The deployment that one command line describes: a target, perhaps with a drafter and a sub-drafter."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyserve.core.errors import ConfigError
from flyserve.core.types import Mode
from orchestration.deployment.file import Deployment, located_deployment
from services.common.config import parse
from services.common.gguf.header import is_gguf
from services.common.home import expanded
from services.common.model_source import GGUF_ENGINE, model_folder
from services.common.sections import advice_on
from services.common.token_map import token_map_hash
from services.engine.config import AUTO
from services.lookup.config import SUFFIX

_SOURCE = "flyserve serve"
_WITHOUT = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLine:
    """The values of the command line; None leaves a key at its default.

    Attributes:
        target: Folder of the target, or `org/name@revision` on the hub.
        draft: The same of the drafter, or an engine that looks tokens up; None decodes without drafts.
        sub_draft: Engine of the sub-drafter, or `none`; `draft` must have a model.
        replicas: Replicas of the target.
        gpus: `auto` or 0, for every tier with a model.
        threads: `auto` or a number, for the same.
        shards: Processes of a replica of the target, each with a GPU of its own if there are some.
        quantization: Of the target: `int8` of the builtin engine, or a method of vLLM.
        max_model_len: Longest sequence, in tokens.
        max_sequences: Sequences that a replica of target or drafter holds at once.
        mode: Mode of requests that set none.
        served_model_name: Name of the target in requests.
        port: Port of the HTTP API.
        grpc_port: Port of the gRPC API.
        host: Interface of both.
        engine: Engine of target and drafter, unless the drafter looks tokens up.
        api_keys: File with the API keys that clients must present.
    """

    target: str
    draft: str | None = None
    sub_draft: str | None = None
    replicas: int | None = None
    gpus: str | int = AUTO
    threads: str | int = AUTO
    shards: int | None = None
    quantization: str | None = None
    max_model_len: int | None = None
    max_sequences: int | None = None
    mode: Mode | None = None
    served_model_name: str | None = None
    host: str | None = None
    port: int = 8000
    grpc_port: int | None = None
    dtype: str | None = None
    engine: str | None = None
    api_keys: Path | None = None


def deployment_content(line: OneLine) -> dict[str, Any]:
    """Return the content of a deployment file; keys that keep their defaults are left out.

    Raises:
        ConfigError: Two of the flags exclude each other.
    """
    places = {"max_sequences": line.max_sequences}
    size = {"dtype": line.dtype, "gpus": line.gpus, "threads": line.threads, **places}
    target = {"model": _model(line.target), "replicas": line.replicas, "shards": line.shards, **size}
    own = {"max_model_len": line.max_model_len, "quantization": line.quantization}
    target |= _engine_keys(_engine(line, line.target), own)
    tiers: dict[str, Mapping[str, Any]] = {"target": target}
    if line.draft == SUFFIX:
        tiers["drafter"] = {"engine": line.draft, **places}
    elif line.draft is not None:
        engine = _engine(line, line.draft)
        own = {"max_model_len": line.max_model_len}
        drafter = {"model": _model(line.draft), **size, **_engine_keys(engine, own)}
        if drafter["model"] == target["model"]:
            raise ConfigError(
                f"--draft: is {line.draft}, the target itself: a drafter must be smaller than its target"
            )
        if _have_other_tokens(Path(line.target), Path(line.draft)):
            drafter["vocabulary"] = "text"
        tiers["drafter"] = drafter
    if line.sub_draft not in (None, _WITHOUT):
        tiers["sub_drafter"] = _sub_drafter(line)
    router = {
        "host": line.host,
        "http_port": line.port,
        "grpc_port": line.grpc_port,
        "model_name": line.served_model_name,
    }
    security = {"auth_tokens_file": None if line.api_keys is None else str(line.api_keys.resolve())}
    speculation = {"mode": None if line.mode is None else line.mode.value}
    sections = {**tiers, "router": router, "speculation": speculation, "security": security}
    return {name: given for name, section in sections.items() if (given := _given(section))}


def _engine(line: OneLine, model: str) -> str | None:
    """Return the engine of a model: a GGUF file has its own; the line's is checked against a target."""
    has_own = is_gguf(Path(model)) and (line.engine is None or model == line.draft)
    return GGUF_ENGINE if has_own else line.engine


def _engine_keys(engine: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine, and keys that it has itself, or vLLM among its arguments."""
    return {"engine": engine, **({"engine_args": _given(given) or None} if engine == "vllm" else given)}


def one_line_deployment(content: Mapping[str, Any]) -> Deployment:
    """Return the deployment of this content, checked as a file would be.

    Raises:
        ConfigError: A value breaks a limit, or a folder does not exist.
    """
    return located_deployment(parse(Deployment, dict(content), _SOURCE), Path(_SOURCE))


def _have_other_tokens(target: Path, drafter: Path) -> bool:
    """Compare the tokens of two folders; models of the hub are compared when the router connects."""
    models = expanded(target), expanded(drafter)
    if not all(map(_is_here, models)):
        return False
    hashes = {token_map_hash(model_folder(model)) for model in models}
    return len(hashes) > 1


def _is_here(model: Path) -> bool:
    """Check that a folder, or a GGUF file, is on this machine."""
    return model.is_dir() or (is_gguf(model) and model.is_file())


def _sub_drafter(line: OneLine) -> dict[str, Any]:
    assert line.sub_draft is not None
    if line.draft is None:
        remedy = "give --draft too"
        if line.sub_draft == SUFFIX:
            remedy += f", or only --draft {line.sub_draft}, which drafts without a model"
        raise ConfigError(f"--sub-draft: is {line.sub_draft}, which helps a drafter: {remedy}")
    if line.draft == SUFFIX:
        raise ConfigError(
            f"--sub-draft: is {line.sub_draft}, which helps a drafter that runs a model, but --draft is"
            f" {line.draft}: leave --sub-draft out"
        )
    if line.sub_draft == SUFFIX:
        return {"engine": line.sub_draft}
    raise ConfigError(
        f"--sub-draft: is {line.sub_draft!r}, must be {SUFFIX} or {_WITHOUT}{advice_on(line.sub_draft)}"
    )


def _model(name: str) -> str:
    """Return the absolute path of a folder or a GGUF file, or the name on the hub as it is."""
    model = expanded(Path(name))
    return str(model.resolve()) if _is_here(model) else name


def _given(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value is not None}
