"""A model folder becomes an unmodified transformers model, or an error that says what is wrong with it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DistributedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from fly.errors import ModelError
from services.common.token_map import hash_token_map, num_token_ids, read_token_map

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SERVED_LAYERS = {"full_attention", "sliding_attention"}
_WITH_SINKS = {"gpt_oss"}
_BLOCK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and what its folder says about it.

    Attributes:
        model: In evaluation mode, on its device.
        architecture: Its class.
        vocab_size: Token ids lie below this; the embedding may be padded beyond.
        context_length: Longest sequence in tokens.
        weight_fingerprint: Hash of configuration and weights.
        token_map_hash: Hash of the tokenizer's map; empty where the folder has no tokenizer.
        shards: Ranks that hold a part of it each; 1 where it is whole.
    """

    model: PreTrainedModel
    architecture: str
    vocab_size: int
    context_length: int
    weight_fingerprint: str
    token_map_hash: str
    shards: int = 1


def load_model(folder: Path, dtype: str, device: str = "cpu", shards: int = 1) -> LoadedModel:
    """Loads safetensors weights into a transformers class; no remote code, no network.

    Args:
        folder: Of the model.
        dtype: Compute type.
        device: Where it goes.
        shards: Ranks of the process group that share it, each of which loads its own part.

    Raises:
        ModelError: The folder is missing or incomplete, or its architecture is not served.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    weights = _check_folder(folder)
    config = _load_config(folder)
    text_config = config.get_text_config()
    token_map = read_token_map(folder)
    _check_vocabulary(folder, num_token_ids(token_map), text_config.vocab_size)
    model = _load_weights(folder, config, DTYPES[dtype], shards).to(device)
    return LoadedModel(
        model=model,
        architecture=type(model).__name__,
        vocab_size=num_token_ids(token_map) or text_config.vocab_size,
        context_length=text_config.max_position_embeddings,
        weight_fingerprint=fingerprint([folder / "config.json", *weights]),
        token_map_hash=hash_token_map(token_map),
        shards=shards,
    )


def read_config(folder: Path) -> Any:
    """A model's configuration, without its weights.

    Raises:
        ModelError: The folder is missing or incomplete, or its architecture is not served.
    """
    _check_folder(folder)
    return _load_config(folder)


def fingerprint(files: list[Path]) -> str:
    """Hash of names and contents."""
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def check_config(config: Any) -> None:
    """Raises `ModelError` where ragged attention would compute something else than the model means."""
    name = config.model_type
    layers = set(getattr(config, "layer_types", None) or ())
    if config.is_encoder_decoder:
        raise ModelError(f"{name}: encoder-decoder models are not served")
    if name in _WITH_SINKS:
        raise ModelError(f"{name}: attention sinks are not served")
    if getattr(config, "attn_logit_softcapping", None):
        raise ModelError(f"{name}: attention with logit soft-capping is not served")
    if getattr(config, "kv_lora_rank", None):
        raise ModelError(f"{name}: multi-head latent attention (MLA) is not served")
    if layers - _SERVED_LAYERS:
        raise ModelError(
            f"{name}: layers of type {', '.join(sorted(layers - _SERVED_LAYERS))} are not served"
        )


def _check_folder(folder: Path) -> list[Path]:
    """The weight files."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json")
    weights = sorted(folder.glob("*.safetensors"))
    if weights:
        return weights
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        raise ModelError(
            f"{folder} has only pickled weights, which can run code: convert them to safetensors"
        )
    raise ModelError(f"{folder} has no *.safetensors weights")


def _load_config(folder: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error
    check_config(config.get_text_config())
    return config


def _check_vocabulary(folder: Path, num_tokens: int, embedding_rows: int) -> None:
    if num_tokens > embedding_rows:
        raise ModelError(f"{folder}: the tokenizer has {num_tokens} ids, the embedding {embedding_rows} rows")


def _load_weights(folder: Path, config: Any, dtype: torch.dtype, shards: int) -> Any:
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
            distributed_config=DistributedConfig(tp_size=shards) if shards > 1 else None,
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise nearly everything here
        raise ModelError(f"{folder} cannot be loaded: {type(error).__name__}: {error}") from error
    model, report = loaded
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if keys := report.get(kind):
            raise ModelError(f"{folder}: {kind.replace('_', ' ')}: {_some(keys)}")
    if any(name.endswith("sinks") for name, _ in model.named_parameters()):
        raise ModelError(f"{config.model_type}: attention sinks are not served")
    return model.eval().requires_grad_(False)


def _some(keys: Any, limit: int = 5) -> str:
    names = [str(key) for key in sorted(keys, key=str)]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
