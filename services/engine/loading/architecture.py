"""Supported models; all others are rejected by name, with the reason, before their weights are read."""

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from flyserve.core.errors import ModelError, describe

_SUPPORTED_LAYERS = {"full_attention", "sliding_attention", "attention"}
_LAYER_LISTS = ("layer_types", "layers_block_type")
_QUANTIZED = ("quantization_config", "compression_config")
_QUANTIZED_FILES = ("quantize_config.json", "quant_config.json")


def read_config(folder: Path) -> Any:
    """Read the configuration of a supported model.

    Raises:
        ModelError: There is no configuration, or the model is not supported.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    _check_adapter(folder)
    path = folder / "config.json"
    described = _read_json(path)
    _check_description(path, described)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # each configuration class checks itself in its own way
        raise ModelError(f"{path} cannot be read: {describe(error)}") from error
    check_config(config)
    _check_class(path, described, model_class(config).__name__)
    return config


def check_config(config: Any) -> None:
    """Raise `ModelError` if ragged attention cannot compute the model correctly."""
    name, text_config = config.model_type, config.get_text_config()
    if config.is_encoder_decoder or text_config.is_encoder_decoder:
        raise ModelError(f"{name}: encoder-decoder models are not supported")
    if getattr(text_config, "kv_lora_rank", None):
        raise ModelError(f"{name}: multi-head latent attention (MLA) is not supported")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{name}: is not a causal language model of transformers {transformers.__version__}")
    if model_class(config)._is_stateful:
        raise ModelError(f"{name}: layers with a recurrent state (Mamba, linear attention) are not supported")
    layers = {layer for key in _LAYER_LISTS for layer in getattr(text_config, key, None) or ()}
    if others := sorted(layers - _SUPPORTED_LAYERS):
        raise ModelError(f"{name}: layers of type {', '.join(others)} are not supported")


def model_class(config: Any) -> Any:
    """Return transformers' causal language model class of a configuration."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def context_length(config: Any) -> int:
    """Return the longest sequence in tokens of a text configuration.

    LongRoPE changes the rotation of all positions once the longest sequence of a batch exceeds the original
    length, so the original length is the limit.

    Raises:
        ModelError: The configuration has no valid `max_position_embeddings`.
    """
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        raise ModelError(f"{config.model_type}: max_position_embeddings is {length!r}, must be at least 1")
    rope = getattr(config, "rope_parameters", None) or {}
    rescaled = [part for part in (rope, *rope.values()) if isinstance(part, dict) and _is_long(part)]
    return min([length, *(int(part["original_max_position_embeddings"]) for part in rescaled)])


def mlp_width(config: Any) -> int:
    """Return the width of the MLPs of a text configuration, of the widest one if they differ (Gemma 3n)."""
    width: int | list[int] = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return width if isinstance(width, int) else max(width)


def _is_long(rope: dict[str, Any]) -> bool:
    return rope.get("rope_type") == "longrope" and "original_max_position_embeddings" in rope


def _check_adapter(folder: Path) -> None:
    path = folder / "adapter_config.json"
    if path.is_file():
        kind = _read_json(path).get("peft_type", "adapter")
        raise ModelError(
            f"{folder} holds a {kind} adapter, which is not supported: merge it into its base model"
        )


def _check_description(path: Path, described: dict[str, Any]) -> None:
    """Check for faults that AutoConfig reports in many lines or not at all."""
    name = described.get("model_type")
    if name is None:
        raise ModelError(f"{path} has no model_type")
    if name not in CONFIG_MAPPING:
        own = "; its own code (auto_map) is never run" if described.get("auto_map") else ""
        raise ModelError(f"{path}: {name!r} is not a model of transformers {transformers.__version__}{own}")
    if method := _quantization(path.parent, described):
        raise ModelError(
            f"{path.parent}: {name} quantized with {method} is not supported: use the unquantized weights"
        )


def _quantization(folder: Path, described: dict[str, Any]) -> str | None:
    """Return the name of the quantization method, if there is one."""
    text = described.get("text_config")
    for part in (described, text if isinstance(text, dict) else {}):
        for key in _QUANTIZED:
            if found := part.get(key):
                return str(found.get("quant_method", key)) if isinstance(found, dict) else key
    return next((name for name in _QUANTIZED_FILES if (folder / name).is_file()), None)


def _check_class(path: Path, described: dict[str, Any], supported: str) -> None:
    names = described.get("architectures") or [supported]
    if supported in names:
        return
    found = ", ".join(map(str, names))
    own = "" if hasattr(transformers, str(names[0])) else ", a custom class, whose code is never run"
    raise ModelError(f"{path}: architectures is {found}{own}; supported is {supported}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {describe(error)}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} cannot be read: it holds {type(content).__name__}, not an object")
    return content
