"""Unsupported models and incomplete weights: rejected in one line that names the fault."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from flyserve.core.errors import ModelError
from services.engine.config import ModelConfig
from services.engine.loading.architecture import check_config, context_length
from services.engine.loading.model import load_model
from tests.support.tiny_models import change_config, make_tiny

FolderMaker = Callable[[str], Path]
INDEX = "model.safetensors.index.json"


def rejection(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(folder, "float32")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("DeepseekV2Config", "latent attention"),
        ("DeepseekV3Config", "latent attention"),
        ("Qwen3NextConfig", "recurrent state"),
        ("Qwen3_5TextConfig", "recurrent state"),
        ("MiniMaxConfig", "linear_attention"),
        ("Llama4TextConfig", "chunked_attention"),
        ("JambaConfig", "recurrent state"),
        ("MambaConfig", "recurrent state"),
        ("Mamba2Config", "recurrent state"),
        ("FalconH1Config", "recurrent state"),
        ("BambaConfig", "recurrent state"),
        ("RecurrentGemmaConfig", "recurrent state"),
        ("RwkvConfig", "recurrent state"),
        ("T5Config", "encoder-decoder"),
        ("BartConfig", "encoder-decoder"),
        ("LlavaConfig", "not a causal language model"),
        ("Qwen2_5_VLConfig", "not a causal language model"),
        ("ViTConfig", "not a causal language model"),
        ("Lfm2Config", "layers of type conv are not supported"),
    ],
)
def test_architectures_rejected_by_name(kind: str, reason: str) -> None:
    layers = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]} if "Lfm2" in kind else {}
    config = getattr(transformers, kind)(**layers)
    with pytest.raises(ModelError, match=reason) as caught:
        check_config(config)
    assert str(caught.value).startswith(f"{config.model_type}: ")


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("BloomForCausalLM", "BloomConfig", "bloom: max_position_embeddings|BloomForCausalLM"),
        ("BertLMHeadModel", "BertConfig", "BertLMHeadModel"),
        ("GPTNeoForCausalLM", "GPTNeoConfig", "GPTNeoForCausalLM|gpt_neo"),
    ],
)
def test_unsupported_attention_is_rejected(tmp_path: Path, kind: str, config: str, reason: str) -> None:
    """ALiBi, bidirectional attention, a window stored only in a buffer."""
    from flyserve.core.messages import Role
    from services.engine.forward.torch_runner import load_runner

    sizes = {"vocab_size": 96, "hidden_size": 32, "num_layers": 2, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_heads": 4, "n_head": 4, "intermediate_size": 48}
    layers = {"attention_types": [[["global", "local"], 1]], "window_size": 7} if "Neo" in kind else {}
    made = getattr(transformers, config)(**sizes, **heads, **layers)
    getattr(transformers, kind)(made).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason) as caught:
        load_runner(ModelConfig(model=tmp_path, role=Role.TARGET, dtype="float32", kv_tokens=512))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read: JSONDecodeError"),
        ("[1]", "it holds list"),
        ('{"no": "type"}', "has no model_type"),
        ('{"model_type": "unheard_of"}', "'unheard_of' is not a model of transformers"),
        ('{"model_type": "llama", "num_attention_heads": "many"}', "cannot be read: .*many"),
    ],
)
def test_a_config_that_describes_nothing(folder: Path, content: str, reason: str) -> None:
    import re

    (folder / "config.json").write_text(content)
    assert re.search(r"config\.json.*" + reason, rejection(folder))


def test_custom_code_is_named_and_never_run(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('was run')")
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    change_config(folder, auto_map=own, architectures=["OwnForCausalLM"])
    assert "architectures is OwnForCausalLM, a custom class" in rejection(folder)
    change_config(folder, model_type="own")
    assert "'own' is not a model" in rejection(folder) and "auto_map" in rejection(folder)


def test_a_known_model_is_loaded_by_its_own_class_despite_auto_map(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('was run')")
    change_config(folder, auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"})
    assert load_model(folder, "float32").architecture == "LlamaForCausalLM"


def test_another_head_is_rejected(folder: Path) -> None:
    change_config(folder, architectures=["LlamaForSequenceClassification"])
    said = rejection(folder)
    assert said.endswith("architectures is LlamaForSequenceClassification; supported is LlamaForCausalLM")


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "mxfp4", "compressed-tensors"])
def test_quantized_weights_are_rejected_by_method(folder: Path, method: str) -> None:
    change_config(folder, quantization_config={"quant_method": method, "bits": 4})
    assert f"llama quantized with {method} is not supported" in rejection(folder)
    change_config(folder, quantization_config=None)
    (folder / "quantize_config.json").write_text('{"bits": 4}')
    assert "quantized with quantize_config.json" in rejection(folder), "of older tools"


def test_an_adapter_is_rejected_with_the_remedy(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert "holds a LORA adapter" in rejection(folder) and "merge it" in rejection(folder)
    for path in (folder / "config.json", folder / "model.safetensors"):
        path.unlink()
    assert "merge it" in rejection(folder)


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('was run')",))


def test_pickled_weights_are_never_opened(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs()))
    assert load_model(folder, "float32").architecture == "LlamaForCausalLM"
    (folder / "model.safetensors").unlink()
    assert "only pickled weights" in rejection(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": "pytorch_model.bin"}}))
    assert "lists 'pytorch_model.bin', must list *.safetensors" in rejection(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    assert "neither model.safetensors nor" in rejection(folder)
    (folder / "consolidated.safetensors").rename(folder / "model.gguf")
    assert "only GGUF weights" in rejection(folder)
    (folder / "model.gguf").unlink()
    assert "has no *.safetensors weights" in rejection(folder)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    make_tiny("llama").save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert (tmp_path / "sharded" / INDEX).is_file()
    return tmp_path / "sharded"


def test_shards_are_loaded_and_fingerprinted(sharded: Path) -> None:
    first = load_model(sharded, "float32").weight_fingerprint
    shutil.copy(sorted(sharded.glob("*.safetensors"))[0], sharded / "consolidated.safetensors")
    assert load_model(sharded, "float32").weight_fingerprint == first


def test_missing_shards_are_named(sharded: Path) -> None:
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    assert f"lacks weights that {INDEX} lists: {gone.name}" in rejection(sharded)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 3}}', "[]"])
def test_an_index_that_names_nothing(sharded: Path, content: str) -> None:
    (sharded / INDEX).write_text(content)
    assert INDEX in rejection(sharded)


def test_an_index_that_leaves_the_folder(sharded: Path) -> None:
    (sharded / INDEX).write_text(json.dumps({"weight_map": {"a": "../other/model.safetensors"}}))
    assert "'../other/model.safetensors', must list" in rejection(sharded)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "model.safetensors is damaged"),
        (b"\0" * 100, "model.safetensors is damaged"),
        (b"{}" * 50, "model.safetensors is damaged"),
        (None, "is damaged or incomplete"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 3\n", "git lfs pull"),
    ],
)
def test_damaged_weights(folder: Path, content: bytes | None, said: str) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10] if content is None else content)
    assert said in rejection(folder)


def test_tied_embeddings_need_no_head_and_untied_do(folder: Path) -> None:
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    loaded = load_model(folder, "float32").model
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    change_config(folder, tie_word_embeddings=False)
    assert "missing keys: lm_head.weight" in rejection(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"max_new_tokens": -4}', '{"eos_token_id": "x"}'])
def test_the_engine_ignores_an_invalid_generation_config(folder: Path, content: str) -> None:
    (folder / "generation_config.json").write_text(content)
    assert load_model(folder, "float32").vocab_size == 96


def test_longrope_is_supported_up_to_its_original_length(tmp_path: Path) -> None:
    config = make_tiny("phi3").config
    config.original_max_position_embeddings = 40
    ropes = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 40}
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
        **ropes,
    }
    transformers.Phi3ForCausalLM(config).save_pretrained(tmp_path)
    loaded = load_model(tmp_path, "float32")
    assert loaded.context_length == 40 and loaded.model.config.max_position_embeddings == 64


@pytest.mark.parametrize("length", [None, 0, "long"])
def test_a_context_length_must_be_configured(length: Any) -> None:
    class Silent:
        model_type = "silent"
        max_position_embeddings = length

    with pytest.raises(ModelError, match="silent: max_position_embeddings is"):
        context_length(Silent())


def test_weights_that_are_not_numbers_do_not_pass_the_check(folder: Path) -> None:
    from flyserve.core.messages import Role
    from services.engine.forward.torch_runner import load_runner

    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with torch.inference_mode(), pytest.raises(ModelError, match="LlamaForCausalLM"):
        load_runner(ModelConfig(model=folder, role=Role.TARGET, dtype="float32", kv_tokens=512))
