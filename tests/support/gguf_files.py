"""Tiny GGUF files with random weights and a byte-level tokenizer of few merges."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 32
_COUNT, _INT, _FLOAT, _BOOL, _TEXT, _ARRAY = 4, 5, 6, 7, 8, 9
_FORMS = {_COUNT: "<I", _INT: "<i", _FLOAT: "<f", _BOOL: "<?"}
_F32, _F16 = 0, 1
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MERGES = ("Ġ t", "h e", "Ġt he", "i n", "e r", "o n", "Ġ a", "a n", "l l", "Ċ Ċ", "Ġ Ġ", "r e", "1 2")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Path:
    """Write a file; matrices are stored in the type that they have, float32 or float16."""
    header = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    header += [_text(key) + _value(value) for key, value in metadata.items()]
    place = 0
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        kind = _F16 if tensor.dtype == np.float16 else _F32
        header.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, place))
        place += _padded(tensor.nbytes)
    content = b"".join(header).ljust(_padded(sum(map(len, header))), b"\0")
    path.write_bytes(
        content + b"".join(t.tobytes().ljust(_padded(t.nbytes), b"\0") for t in tensors.values())
    )
    return path


def gguf_of(model: Any, path: Path, **changes: Any) -> Path:
    """Write a model of transformers in float32, with a byte-level tokenizer as large as its vocabulary.

    `changes` replace metadata by their keys, None removes one.
    """
    config = model.config.get_text_config()
    architecture = _ARCHITECTURES[config.model_type]
    sizes = {name: getattr(config, theirs, None) for name, theirs in _SIZES.items()}
    sizes["rope.freq_base"] = float(_rope(config)["rope_theta"])
    metadata = {
        "general.architecture": architecture,
        **{f"{architecture}.{name}": value for name, value in sizes.items()},
        **byte_level_tokenizer(byte_level_tokens()[: config.vocab_size]),
        **changes,
    }
    weights = {name: weight.float().numpy() for name, weight in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    is_gemma = architecture.startswith("gemma")
    tensors = {_gguf_name(name, is_gemma): _stored(name, weight, config) for name, weight in weights.items()}
    return write_gguf(path, {key: value for key, value in metadata.items() if value is not None}, tensors)


def described_llama(**changes: Any) -> dict[str, Any]:
    """Return the metadata of a Llama without its sizes."""
    return {"general.architecture": "llama", **byte_level_tokenizer(byte_level_tokens()), **changes}


def tiny_mamba(path: Path) -> Path:
    """Write a Mamba of one layer, whose state cannot be rolled back."""
    width, inner, state, rank, kernel = 16, 32, 4, 2, 4
    sizes = {"ssm.conv_kernel": kernel, "ssm.inner_size": inner, "ssm.state_size": state}
    sizes |= {"block_count": 1, "context_length": 64, "embedding_length": width, "feed_forward_length": 0}
    sizes |= {"ssm.time_step_rank": rank, "attention.head_count": 0}
    metadata = {f"mamba.{name}": size for name, size in sizes.items()}
    metadata |= {"mamba.attention.layer_norm_rms_epsilon": 1e-5, "general.architecture": "mamba"}
    tokens = byte_level_tokens()
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ssm_in.weight": (2 * inner, width),
        "blk.0.ssm_conv1d.weight": (inner, kernel),
        "blk.0.ssm_conv1d.bias": (inner,),
        "blk.0.ssm_x.weight": (rank + 2 * state, inner),
        "blk.0.ssm_dt.weight": (inner, rank),
        "blk.0.ssm_dt.bias": (inner,),
        "blk.0.ssm_a": (inner, state),
        "blk.0.ssm_d": (inner,),
        "blk.0.ssm_out.weight": (width, inner),
    }
    tensors = {name: np.full(shape, -0.1, np.float32) for name, shape in shapes.items()}
    return write_gguf(path, metadata | byte_level_tokenizer(tokens), tensors)


_ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}
"""Architectures of GGUF by model types of transformers."""
_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
}
"""Keys of GGUF, and those of a configuration of transformers."""
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""Parts of names in transformers, and what GGUF calls them."""


def _rope(config: Any) -> Mapping[str, Any]:
    """Return the rotation of the layers with full attention."""
    found: Mapping[str, Any] = config.rope_parameters
    return found.get("full_attention", found)


def _gguf_name(name: str, is_gemma: bool) -> str:
    after = "post_attention_norm" if is_gemma else "ffn_norm"
    name = name.replace("post_attention_layernorm", after)
    for theirs, ours in _NAMES.items():
        name = name.replace(theirs, ours)
    return name


def _stored(name: str, weight: NDArray[Any], config: Any) -> NDArray[Any]:
    """Return a weight as GGUF stores it: rotated pairs of Llama as neighbours, norms of Gemma plus 1."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    number = next((heads[part] for part in name.split(".") if part in heads), None)
    if number is not None and _ARCHITECTURES[config.model_type] == "llama":
        rows, columns = weight.shape
        halves = weight.reshape(number, 2, rows // number // 2, columns)
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)
    return weight + 1 if config.model_type.startswith("gemma") and "norm" in name else weight


def byte_level_tokens() -> list[str]:
    """Return the tokens of all bytes, those of a few merges, and the special ones."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = [*map(chr, printable), *(chr(0x100 + number) for number in range(len(others)))]
    return [*letters, *(merge.replace(" ", "") for merge in _MERGES), *_SPECIAL]


def byte_level_tokenizer(tokens: Sequence[str], pre: str = "smollm") -> dict[str, Any]:
    """Return the metadata of a byte-level tokenizer."""
    names = {name: number for number, name in enumerate(tokens) if name in _SPECIAL}
    known = [merge for merge in _MERGES if merge.replace(" ", "") in tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [3 if token in _SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": known,
        "tokenizer.ggml.bos_token_id": names.get("<|im_start|>", 1),
        "tokenizer.ggml.eos_token_id": names.get("<|im_end|>", 2),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def spaced_tokenizer(model: str, has_prefix: bool) -> dict[str, Any]:
    """Return the metadata of a tokenizer that writes spaces as `▁`: with scores (`llama`), or merges."""
    merges = [merge.replace("Ġ", "▁").replace("Ċ", "\n") for merge in _MERGES]
    letters = [chr(byte) for byte in range(0x20, 0x7F) if chr(byte) != " "]
    pieces = ["▁", "\n", *letters, *(merge.replace(" ", "") for merge in merges)]
    control = ["<unk>", "<s>", "</s>", *_SPECIAL]
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, *[3] * (len(control) - 1), *[6] * 256, *[1] * len(pieces)]
    specific = (
        {"merges": merges} if model == "gemma4" else {"scores": [-float(n) for n in range(len(tokens))]}
    )
    common = {"model": model, "tokens": tokens, "token_type": types, "add_space_prefix": has_prefix}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True}
    return {f"tokenizer.ggml.{key}": value for key, value in {**common, **specific, **ids}.items()}


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Any) -> bytes:
    kind = _COUNT if type(value) is int and value >= 0 else _kind(value)
    if kind != _ARRAY:
        return struct.pack("<I", kind) + _plain(kind, value)
    inner = _kind(value[0]) if value else _TEXT
    return struct.pack("<IIQ", _ARRAY, inner, len(value)) + b"".join(_plain(inner, each) for each in value)


def _kind(value: Any) -> int:
    kinds = {bool: _BOOL, int: _INT, float: _FLOAT, str: _TEXT, list: _ARRAY}
    return kinds[type(value)]


def _plain(kind: int, value: Any) -> bytes:
    return _text(value) if kind == _TEXT else struct.pack(_FORMS[kind], value)
