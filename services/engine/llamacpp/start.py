"""Load a GGUF file into a runner, or report what is wrong with the file, the keys or the memory."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flyserve.core.blocks import BLOCK_TOKENS
from flyserve.core.errors import ModelError
from flyserve.core.messages import ModelInfo
from flyserve.core.version import VERSION
from services.common.gguf.header import gguf_parts, read_header
from services.common.machine.machine import find_machine
from services.common.model_source import model_file, model_folder, model_name
from services.common.token_map import hash_token_map, num_token_ids, read_token_map
from services.engine.config import AUTO, LlamaCppConfig
from services.engine.llamacpp import library as libllama
from services.engine.llamacpp.contexts import DETERMINISTIC_COPIES, Opener
from services.engine.llamacpp.runner import LlamaCppRunner
from services.engine.llamacpp.tokens import check_tokens
from services.engine.loading.folder import BackgroundFingerprint
from services.engine.loading.steps_check import check_steps

logger = logging.getLogger(__name__)

_KV_TOKENS = 16_384
"""KV positions by default, if the memory allows. Every row passes over all that are used, by any sequence."""
_KV_SHARE = 0.25
_KV_BYTES = 2
_CHECKED_TOKENS = 24
"""Tokens of the sequences that are computed in several ways at the start."""
_PROVEN_TOKENS = 48
"""The same with `deterministic`: two of them reach 64 rows, from which llama.cpp has another attention."""


def load_gguf_runner(config: LlamaCppConfig) -> LlamaCppRunner:
    """Load the model of a configuration and return its runner.

    Raises:
        ModelError: The library is missing or another one, the file is damaged, its architecture or its
            tokenizer is not supported, or there is too little memory.
    """
    torch.set_num_threads(config.num_threads)  # which the library's number follows
    library, file = libllama.load_library(), model_file(config.model)
    parts = gguf_parts(file)
    metadata, folder = read_header(file), model_folder(file)
    architecture = str(metadata.get("general.architecture", "unknown"))
    size = sum(os.path.getsize(part) for part in parts)
    bytes_each = int(kv_bytes(metadata) * (DETERMINISTIC_COPIES if config.deterministic else 1))
    capacity = _kv_tokens(config, bytes_each, size, find_machine().memory_bytes)
    with BackgroundFingerprint(parts) as fingerprint:
        model = _load(library, file, architecture, config.deterministic)
        token_map = read_token_map(folder)
        rows = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        if (num_ids := num_token_ids(token_map)) > rows:
            raise ModelError(f"{file}: the tokenizer has {num_ids} ids, the embedding {rows} rows")
        check_tokens(library, model, folder, file)
    quantization = library.llama_ftype_name(library.llama_model_ftype(model)).decode()
    info = ModelInfo(
        role=config.role,
        model_id=model_name(file),
        weight_fingerprint=f"{fingerprint.result()}-{config.engine}",
        architecture=architecture,
        token_map_hash=hash_token_map(token_map),
        vocab_size=num_ids,
        context_length=_context_length(config, library.llama_model_n_ctx_train(model)),
        dtype=config.dtype.value,
        shards=1,
        kv_capacity=capacity,
        version=VERSION,
        max_sequences=config.max_sequences,
        engine=config.engine,
        engine_version=libllama.VERSION,
        quantization=quantization,
    )
    runner = Opener(library, model, config, info, _num_rows(config), rows).open()
    runner.info = replace(info, **_checked(runner, config))
    invariant = str(runner.info.row_invariant).lower()
    logger.info("%s: %s, %d KV positions, row_invariant: %s", file, quantization, capacity, invariant)
    return runner


def _checked(runner: LlamaCppRunner, config: LlamaCppConfig) -> dict[str, Any]:
    """Return the facts of a runner that the check of its steps finds.

    Raises:
        ModelError: Rows depend on what is computed beside them, although they must not.
    """
    # Quantized rows, and 16 bits of KV memory, round.
    checked = check_steps(runner, torch.bfloat16, _checked_tokens(config))
    if config.deterministic and not checked.is_invariant:
        raise ModelError(
            f"deterministic: is true, but rows of {runner.info.model_id} ({runner.info.quantization}) in"
            " steps differ from a prefill's: set it to false, or use a file of another quantization"
        )
    return {"kernels": checked.kernels, "row_invariant": config.deterministic}


def kv_bytes(metadata: Mapping[str, Any]) -> int:
    """Return the bytes of one KV position in all layers, at most: compressed attention needs less. Pure."""

    def numbers(name: str, default: Sequence[float]) -> Sequence[float]:
        """Return a number, or one of each layer; the default if the key is absent, or of another type."""
        found = metadata.get(f"{metadata.get('general.architecture')}.{name}")
        listed: list[Any] = found if isinstance(found, list) else [found]
        return listed if all(isinstance(each, int) for each in listed) else default

    def most(name: str, default: float = 0) -> float:
        return max(numbers(name, ()), default=default)

    heads = most("attention.head_count")
    width = most("embedding_length") / max(1, heads)
    per_layer = numbers("attention.head_count_kv", [heads])
    kv_heads = most("block_count") * per_layer[0] if len(per_layer) == 1 else sum(per_layer)
    lengths = most("attention.key_length", width) + most("attention.value_length", width)
    return int(kv_heads * lengths * _KV_BYTES)


def _kv_tokens(config: LlamaCppConfig, bytes_each: int, weight_bytes: int, memory_bytes: int) -> int:
    """Return the KV positions, in whole blocks; a memory of 0 bytes is unknown, and limits nothing."""
    default = max(_KV_TOKENS, config.max_model_len or 0)
    if memory_bytes:
        room = int((memory_bytes - weight_bytes) * _KV_SHARE / max(1, bytes_each))
        default = max(BLOCK_TOKENS, min(room, default))
    wanted = config.kv_tokens if isinstance(config.kv_tokens, int) else default
    if wanted < BLOCK_TOKENS:
        raise ModelError(f"kv_tokens: is {wanted}, must be at least {BLOCK_TOKENS}")
    if 0 < memory_bytes < weight_bytes + wanted * bytes_each:
        raise ModelError(
            f"kv_tokens: is {wanted}, which take {wanted * bytes_each / 1e9:.1f} GB beside the weights'"
            f" {weight_bytes / 1e9:.1f} GB, but {memory_bytes / 1e9:.1f} GB are available: lower kv_tokens,"
            f" set {AUTO}, or use a smaller file"
        )
    return wanted // BLOCK_TOKENS * BLOCK_TOKENS


def _context_length(config: LlamaCppConfig, trained: int) -> int:
    if config.max_model_len is not None and config.max_model_len > trained:
        raise ModelError(f"max_model_len: is {config.max_model_len}, at most {trained}, the model's context")
    return config.max_model_len or trained


def _load(library: Any, file: Path, architecture: str, is_invariant: bool) -> int:
    """Return the model of a file, whose sequences can be rolled back.

    NOTE: weights in another layout have one kernel for groups of rows, and another one for those left over.
    """
    params = library.llama_model_default_params()
    params.use_extra_bufts = not is_invariant
    with libllama.explained() as lines:
        model: int | None = library.llama_model_load_from_file(os.fsencode(file), params)
    if not model:
        raise ModelError(f"{file} cannot be loaded: {libllama.reason(lines)}")
    for kind, reason in (
        ("is_recurrent", "its state (Mamba, RWKV) cannot be rolled back"),
        ("is_hybrid", "the state of its recurrent layers (Mamba, linear attention) cannot be rolled back"),
        ("is_diffusion", "diffusion models are not supported"),
        ("has_encoder", "encoder-decoder models are not supported"),
    ):
        if getattr(library, f"llama_model_{kind}")(model):
            library.llama_model_free(model)
            raise ModelError(f"{file}: its architecture is {architecture}: {reason}")
    return model


def _checked_tokens(config: LlamaCppConfig) -> int:
    return _PROVEN_TOKENS if config.deterministic else _CHECKED_TOKENS


def _num_rows(config: LlamaCppConfig) -> int:
    """Return the most rows at once, those of the checks and measurements of the start included."""
    return max(config.batch_tokens, 2 * _checked_tokens(config))
