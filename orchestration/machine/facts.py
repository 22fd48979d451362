"""Properties of a model folder that decide where it fits; reads the configuration and sizes, no weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.gguf.header import gguf_parts, is_gguf
from services.common.model_source import WEIGHT_FILES

_BYTES: Mapping[str, float] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""Keys of a configuration whose values are split among shards."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model, as far as it matters for its place.

    Attributes:
        weight_bytes: Bytes of its weights as they are stored; 0 if unknown.
        stored_bytes: Bytes of one of them.
        divisors: Numbers that shards must divide.
        kv_values: Keys and values of one position in all layers; 0 if unknown.
        vocab_size: Logits of one position; 0 if unknown.
    """

    weight_bytes: int = 0
    stored_bytes: float = 2
    divisors: tuple[int, ...] = ()
    kv_values: int = 0
    vocab_size: int = 0

    def bytes_as(self, dtype: str, quantization: str = "none") -> int:
        """Return the bytes of the weights in memory, computed in `dtype`, or stored in eight bits."""
        wanted = _BYTES.get(dtype if quantization == "none" else quantization, self.stored_bytes)
        return round(self.weight_bytes * wanted / self.stored_bytes)

    def kv_bytes_as(self, dtype: str) -> int:
        """Return the bytes of a position's keys and values, computed in `dtype`."""
        return round(self.kv_values * _BYTES.get(dtype, self.stored_bytes))


def read_facts(folder: Path) -> ModelFacts:
    """Return the properties of a folder, or of a GGUF file; those that it does not have are unknown."""
    if is_gguf(folder) and folder.is_file():
        return ModelFacts(sum(part.stat().st_size for part in gguf_parts(folder)))
    sizes = [file.stat().st_size for pattern in WEIGHT_FILES for file in folder.glob(pattern)]
    return facts_of(_config(folder / "config.json"), sum(sizes))


def facts_of(config: Mapping[str, Any], weight_bytes: int) -> ModelFacts:
    """Return the properties of a model with this configuration and these bytes of weights."""
    text = config.get("text_config")
    described = {**config, **(text if isinstance(text, dict) else {})}
    stored = _BYTES.get(str(described.get("dtype", described.get("torch_dtype"))), 2)
    numbers = (described.get(key) for key in _DIVIDED)
    divisors = tuple(n for n in numbers if isinstance(n, int) and n > 0)
    return ModelFacts(weight_bytes, stored, divisors, _kv_values(described), _number(described, "vocab_size"))


def _kv_values(config: Mapping[str, Any]) -> int:
    heads = _number(config, "num_attention_heads")
    dim = _number(config, "head_dim") or _number(config, "hidden_size") // max(heads, 1)
    return 2 * _number(config, "num_hidden_layers") * (_number(config, "num_key_value_heads") or heads) * dim


def _number(config: Mapping[str, Any], key: str) -> int:
    return found if isinstance(found := config.get(key), int) else 0


def _config(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # reported when the model is loaded
    return found if isinstance(found, dict) else {}
