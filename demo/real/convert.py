"""Convert a GGUF model: `python -m demo.real.convert SOURCE FOLDER [NAME-f16.gguf] [NAME-q8_0.gguf]`.

Needs the library `gguf`. FOLDER gets safetensors in bfloat16, the others the same weights in their kind.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

_DIVIDED_BY = "tokenizer.ggml.pre"
"""Key of the rule by which a tokenizer divides a text before it merges."""


def main(source: Path, folder: Path, *ggufs: Path) -> None:
    """Write the model, and its weights in the kind that the name of each other file ends with."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    divide_digits(
        tokenizer.backend_tokenizer, str(_library().GGUFReader(source).get_field(_DIVIDED_BY).contents())
    )
    save(model, folder)
    tokenizer.save_pretrained(folder)
    for gguf in ggufs:
        write_gguf(source, gguf, gguf.stem.rpartition("-")[2].upper())


def divide_digits(tokenizer: Tokenizer, divided_by: str) -> None:
    """Let a tokenizer of the kind `smollm` divide a text before and after each digit.

    transformers reads such a file as GPT-2, where two spaces before a number become other tokens.
    """
    if divided_by == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])


def save(model: Any, folder: Path) -> None:
    """Save a model in bfloat16, as one that was never quantized."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(folder)


def write_gguf(source: Path, target: Path, kind: str) -> None:
    """Copy a GGUF file with its matrices as F16 or Q8_0, rounded to bfloat16 first as `save` rounds them."""
    gguf = _library()
    kinds, reader = gguf.GGMLQuantizationType, gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    for tensor in reader.tensors:
        rows = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type)).to(torch.bfloat16).float()
        stored = kinds.F32 if tensor.tensor_type is kinds.F32 else kinds[kind]
        writer.add_tensor(tensor.name, gguf.quantize(rows.numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _library() -> Any:
    return importlib.import_module("gguf")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
