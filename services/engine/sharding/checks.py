"""What a model must be like to be shared: found out before any process waits for another."""

import importlib.util
from collections.abc import Iterator
from typing import Any

from fly.errors import ModelError

_SHARED = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "KV heads",
    "intermediate_size": "MLP width",
    "moe_intermediate_size": "width of the experts",
}


def check_shards(config: Any, shards: int) -> None:
    """Raises `ModelError` where a model cannot be split into equal parts.

    Args:
        config: Of the model's text part.
        shards: Parts.
    """
    name = config.model_type
    if not getattr(config, "base_model_tp_plan", None):
        raise ModelError(f"shards is {shards}: {name} has no tensor parallel plan in transformers, must be 1")
    if faults := list(_faults(config, shards)):
        raise ModelError(f"shards is {shards}: must divide {' and '.join(faults)} of {name}")
    if importlib.util.find_spec("accelerate") is None:
        raise ModelError(f"shards is {shards}: loading a part of a model needs the package accelerate")


def _faults(config: Any, shards: int) -> Iterator[str]:
    for field, description in _SHARED.items():
        size = getattr(config, field, None)
        if isinstance(size, int) and size % shards:
            yield f"the {size} {description}"
