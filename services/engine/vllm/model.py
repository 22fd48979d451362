"""The model that vLLM serves: the facts of its folder, shared with the builtin engine, and of vLLM's own."""

from pathlib import Path
from typing import Any

from flyserve.core.errors import ModelError
from flyserve.core.messages import ModelInfo
from flyserve.core.version import VERSION
from services.common.model_source import model_name
from services.common.token_map import hash_token_map, num_token_ids, read_token_map
from services.engine.config import VllmConfig
from services.engine.loading.folder import fingerprint, read_architecture, weight_files


def describe_model(config: VllmConfig, folder: Path, vllm_config: Any) -> ModelInfo:
    """Return the handshake of a replica on vLLM.

    Its fingerprint names the engine: another engine computes other roundings from the same weights.

    Raises:
        ModelError: The folder has no safetensors weights, or its tokenizer does not fit.
    """
    import vllm

    assert config.model is not None
    token_map = read_token_map(folder)
    num_ids, rows = num_token_ids(token_map), vllm_config.model_config.get_vocab_size()
    if num_ids > rows:
        raise ModelError(f"{folder}: the tokenizer has {num_ids} ids, the embedding {rows} rows")
    quantization = vllm_config.model_config.quantization or ""
    weights = fingerprint([folder / "config.json", *weight_files(folder)])
    return ModelInfo(
        role=config.role,
        model_id=model_name(config.model),
        weight_fingerprint="-".join(filter(None, [weights, config.engine, quantization])),
        architecture=read_architecture(folder),
        token_map_hash=hash_token_map(token_map),
        vocab_size=num_ids or rows,
        context_length=vllm_config.model_config.max_model_len,
        dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
        shards=vllm_config.parallel_config.tensor_parallel_size,
        kv_capacity=0,  # the runner's
        version=VERSION,
        max_sequences=config.max_sequences,
        engine=config.engine,
        engine_version=str(vllm.__version__),
        quantization=quantization,
    )
