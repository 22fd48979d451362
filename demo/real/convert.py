"""Convert the GGUF model: `python -m demo.real.convert SOURCE FOLDER GGUF`.

Needs the library `gguf`. FOLDER gets safetensors in bfloat16, GGUF the same weights in float16.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(source: Path, folder: Path, gguf: Path) -> None:
    """Write both forms of the model."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    save(model, folder)
    tokenizer.save_pretrained(folder)
    write_half(source, gguf)


def save(model: Any, folder: Path) -> None:
    """Save a model in bfloat16, as one that was never quantized."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(folder)


def write_half(source: Path, target: Path) -> None:
    """Copy a GGUF file with its matrices in float16, rounded to bfloat16 first as `save` rounds them."""
    gguf: Any = importlib.import_module("gguf")
    kinds, reader = gguf.GGMLQuantizationType, gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        rows = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type)).to(torch.bfloat16).float()
        is_matrix = tensor.tensor_type is not kinds.F32
        writer.add_tensor(tensor.name, (rows.half() if is_matrix else rows).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
