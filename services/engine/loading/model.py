"""Load a model folder into an unmodified transformers model, or report what is wrong with the folder."""

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DistributedConfig, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from flyserve.core.errors import ModelError, describe
from services.common.token_map import hash_token_map, num_token_ids, read_token_map
from services.engine.loading.architecture import context_length, model_class, read_config
from services.engine.loading.folder import BackgroundFingerprint, weight_files

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and the properties of its folder.

    Attributes:
        model: The model, in evaluation mode, on its device.
        vocab_size: Token ids lie below this; the embedding may be padded beyond.
        weight_fingerprint: Hash of configuration and weights.
        token_map_hash: Hash of the tokenizer's map; empty if the folder has no tokenizer.
        shards: Ranks that hold a part of it each; 1 if this process holds the whole model.
    """

    model: PreTrainedModel
    architecture: str
    vocab_size: int
    context_length: int
    weight_fingerprint: str
    token_map_hash: str
    shards: int = 1


def load_model(folder: Path, dtype: str, device: str = "cpu", shards: int = 1) -> LoadedModel:
    """Load safetensors weights into a transformers class; no remote code, no network.

    If ranks of a process group share the model, each of `shards` loads its own part.

    Raises:
        ModelError: The folder is missing or incomplete, or its architecture is not supported.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype is {dtype!r}, must be one of {', '.join(DTYPES)}")
    config = read_config(folder)
    weights = weight_files(folder)
    text_config = config.get_text_config()
    token_map = read_token_map(folder)
    num_ids, embedding_rows = num_token_ids(token_map), text_config.vocab_size
    if num_ids > embedding_rows:
        raise ModelError(f"{folder}: the tokenizer has {num_ids} ids, the embedding {embedding_rows} rows")
    with BackgroundFingerprint([folder / "config.json", *weights]) as weight_fingerprint:
        model = _load_weights(folder, config, DTYPES[dtype], shards, device).to(device)
    return LoadedModel(
        model=model,
        architecture=type(model).__name__,
        vocab_size=num_ids or embedding_rows,
        context_length=context_length(text_config),
        weight_fingerprint=weight_fingerprint.result(),
        token_map_hash=hash_token_map(token_map),
        shards=shards,
    )


def _load_weights(folder: Path, config: Any, dtype: torch.dtype, shards: int, device: str) -> Any:
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if shards > 1:
        from services.engine.loading.ordered_sum import use_ordered_sums

        use_ordered_sums()
    unused: Any = GenerationConfig()  # type: ignore[no-untyped-call]
    try:
        with _quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                # Eager where SDPA cannot compute the model (sinks, soft-capping).
                attn_implementation="sdpa" if model_class(config)._supports_sdpa else "eager",
                distributed_config=DistributedConfig(tp_size=shards) if shards > 1 else None,
                device_map=device_map(device, shards),
                generation_config=unused,  # the router reads the folder's own
                ignore_mismatched_sizes=True,  # reported by _check_report, with the sizes
                output_loading_info=True,
            )
    except Exception as error:  # transformers and safetensors raise many types here
        raise ModelError(f"{folder} cannot be loaded: {describe(error)}") from error
    model, report = loaded
    _check_report(folder, report)
    return model.eval().requires_grad_(False)


def device_map(device: str, shards: int) -> dict[str, str] | None:
    """Return the device on which each weight is created; None leaves them in memory, to be moved later.

    transformers places the parts of a shared model itself, and needs accelerate to place a whole one.
    """
    is_direct = device != "cpu" and shards == 1 and importlib.util.find_spec("accelerate") is not None
    return {"": device} if is_direct else None


def _check_report(folder: Path, report: dict[str, Any]) -> None:
    for kind in ("missing_keys", "unexpected_keys", "error_msgs"):
        if keys := report.get(kind):
            raise ModelError(f"{folder}: {kind.replace('_', ' ')}: {_some(keys)}")
    if mismatched := report.get("mismatched_keys"):
        sizes = [f"{key} is {list(found)}, must be {list(wanted)}" for key, found, wanted in mismatched]
        raise ModelError(f"{folder}: weights with a wrong shape: {_some(sizes)}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress transformers' own report, which has many lines."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def _some(keys: Any, limit: int = 5) -> str:
    names = [str(key) for key in sorted(keys, key=str)]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
