"""libllama's C API by ctypes, from the one version of the wheel `xllamacpp` whose structs are known here."""

import ctypes
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from flyserve.core.errors import ModelError, describe

logger = logging.getLogger(__name__)

PACKAGE = "xllamacpp"
VERSION = "2026.10.11549"
"""Version of the wheel, which is also that of the extra `llamacpp` in pyproject.toml."""
MOST_SEQUENCES = 256
"""Sequences that libllama is built for (LLAMA_MAX_SEQ)."""
_WARNING, _ERROR = 3, 4

_u32, _i32, _f32, _ptr, _bool = (
    ctypes.c_uint32,
    ctypes.c_int32,
    ctypes.c_float,
    ctypes.c_void_p,
    ctypes.c_bool,
)


class ModelParams(ctypes.Structure):
    """`llama_model_params`."""

    _fields_ = (
        *((name, _ptr) for name in ("devices", "tensor_buft_overrides")),
        *((name, _i32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, _ptr) for name in ("tensor_split", "progress_callback", "progress_data", "kv_overrides")),
        *((name, _bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts")),
        *((name, _bool) for name in ("no_host", "no_alloc", "load_mtp")),
    )


class ContextParams(ctypes.Structure):
    """`llama_context_params`."""

    _fields_ = (
        *((name, _u32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, _u32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, _i32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type")),
        *((name, _i32) for name in ("pooling_type", "attention_type", "flash_attn_type")),
        *((name, _f32) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor")),
        *((name, _f32) for name in ("yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")),
        *(("yarn_orig_ctx", _u32), ("defrag_thold", _f32), ("cb_eval", _ptr), ("cb_eval_user_data", _ptr)),
        *(("type_k", _i32), ("type_v", _i32), ("moe_cache_size", ctypes.c_size_t)),
        *((name, _ptr) for name in ("abort_callback", "abort_callback_data")),
        *((name, _bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload")),
        *(("swa_full", _bool), ("kv_unified", _bool), ("samplers", _ptr), ("n_samplers", ctypes.c_size_t)),
        ("ctx_other", _ptr),
    )


class Batch(ctypes.Structure):
    """`llama_batch`."""

    _fields_ = (
        ("n_tokens", _i32),
        *((name, _ptr) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")),
    )


_MODEL_DEFAULTS: Mapping[str, Any] = {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1} | {
    "use_extra_bufts": True,
    "vocab_only": False,
    "load_mtp": False,
}
_CONTEXT_DEFAULTS: Mapping[str, Any] = {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1} | {
    "n_threads": 4,
    "flash_attn_type": -1,
    "yarn_beta_slow": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "offload_kqv": True,
    "swa_full": True,
    "kv_unified": False,
}
"""Defaults that the library returns; other ones show that a struct has changed."""

_LogFunction = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _ptr)

_FUNCTIONS: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (_LogFunction, _ptr)),
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_model_load_from_file": (_ptr, (ctypes.c_char_p, ModelParams)),
    "llama_model_free": (None, (_ptr,)),
    "llama_model_get_vocab": (_ptr, (_ptr,)),
    "llama_model_n_ctx_train": (_i32, (_ptr,)),
    "llama_model_n_swa": (_i32, (_ptr,)),
    "llama_model_has_encoder": (_bool, (_ptr,)),
    "llama_model_is_recurrent": (_bool, (_ptr,)),
    "llama_model_is_hybrid": (_bool, (_ptr,)),
    "llama_model_is_diffusion": (_bool, (_ptr,)),
    "llama_model_ftype": (_i32, (_ptr,)),
    "llama_ftype_name": (ctypes.c_char_p, (_i32,)),
    "llama_vocab_n_tokens": (_i32, (_ptr,)),
    "llama_tokenize": (_i32, (_ptr, ctypes.c_char_p, _i32, _ptr, _i32, _bool, _bool)),
    "llama_init_from_model": (_ptr, (_ptr, ContextParams)),
    "llama_free": (None, (_ptr,)),
    "llama_n_ctx": (_u32, (_ptr,)),
    "llama_n_batch": (_u32, (_ptr,)),
    "llama_n_ubatch": (_u32, (_ptr,)),
    "llama_n_seq_max": (_u32, (_ptr,)),
    "llama_n_threads": (_i32, (_ptr,)),
    "llama_set_n_threads": (None, (_ptr, _i32, _i32)),
    "llama_get_causal_attn": (_bool, (_ptr,)),
    "llama_get_memory": (_ptr, (_ptr,)),
    "llama_memory_seq_rm": (_bool, (_ptr, _i32, _i32, _i32)),
    "llama_memory_seq_cp": (None, (_ptr, _i32, _i32, _i32, _i32)),
    "llama_state_seq_get_size": (ctypes.c_size_t, (_ptr, _i32)),
    "llama_state_seq_get_data": (ctypes.c_size_t, (_ptr, _ptr, ctypes.c_size_t, _i32)),
    "llama_state_seq_set_data": (ctypes.c_size_t, (_ptr, _ptr, ctypes.c_size_t, _i32)),
    "llama_decode": (_i32, (_ptr, Batch)),
    "llama_get_logits": (_ptr, (_ptr,)),
}
"""Result and arguments of each function."""


@cache
def load_library() -> Any:
    """Return the library, with the types of its functions.

    Raises:
        ModelError: It is missing, cannot be loaded, has another version, or is not what this version has.
    """
    try:
        found = metadata.version(PACKAGE)
        spec = util.find_spec(PACKAGE)
        folders = map(Path, (spec and spec.submodule_search_locations) or ())
        file = next(
            file for folder in folders for file in folder.glob(f"{PACKAGE}.*") if file.suffix != ".py"
        )
    except (metadata.PackageNotFoundError, StopIteration):
        raise ModelError(
            f"engine is llamacpp, but {PACKAGE} {VERSION} is not installed here: pip install"
            " 'flyserve[llamacpp]'"
        ) from None
    if found != VERSION:
        raise ModelError(f"{PACKAGE} {found} is installed, this version of FlyServe needs {VERSION}")
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise ModelError(f"{PACKAGE} {VERSION} cannot be loaded: {describe(error)}") from error
    if faults := [*_declare(library), *_struct_faults(library)]:
        raise ModelError(f"{PACKAGE} {VERSION} is not the library that it should be: {'; '.join(faults)}")
    library.llama_log_set(_log, None)
    library.llama_backend_init()
    return library


def _declare(library: Any) -> Iterator[str]:
    """Set the types of all functions; yield the names of those that are missing."""
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            yield f"it has no {name}"
        else:
            function.restype, function.argtypes = result, arguments


def _struct_faults(library: Any) -> Iterator[str]:
    for name, defaults in (("model", _MODEL_DEFAULTS), ("context", _CONTEXT_DEFAULTS)):
        try:
            found = getattr(library, f"llama_{name}_default_params")()
        except AttributeError:
            return
        for field, value in defaults.items():
            if getattr(found, field) != value:
                yield f"llama_{name}_params.{field} is {getattr(found, field)}, must be {value}"


_lines: list[str] = []
"""Warnings and errors of the call in `explained`."""


def _record(level: int, text: bytes, _: Any) -> None:
    if level in (_WARNING, _ERROR):
        line = text.decode("utf-8", "replace").strip()
        logger.debug("llama.cpp: %s", line)
        if level == _ERROR:
            _lines.append(line)


_log = _LogFunction(_record)


@contextmanager
def explained() -> Iterator[list[str]]:
    """Yield the list of lines that the library reports as errors within the block."""
    _lines.clear()
    yield _lines


def reason(lines: list[str]) -> str:
    """Return why the library failed: its last error is the most general one, so it is the one before."""
    reasons = [line.rpartition("error loading model: ")[2] for line in lines if "error loading model" in line]
    return next(iter([*reasons, *lines]), "libllama names no reason; is there enough memory?")
