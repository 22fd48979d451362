"""Pairs as model folders that every service can load."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from benchmarks.aligned_pair.models import build_pair
from benchmarks.aligned_pair.recipe import PairRecipe

_RECIPE = "recipe.json"


@dataclass(frozen=True, slots=True)
class PairFolders:
    """Folders of a pair's models."""

    target: Path
    drafter: Path


def ensure_pair(recipe: PairRecipe, folder: Path, device: str = "cpu") -> PairFolders:
    """Return the pair's folders under `folder`; build them in bf16 on a device unless this pair exists."""
    folders = PairFolders(folder / "target", folder / "drafter")
    made = json.dumps(asdict(recipe))
    record = folder / _RECIPE
    if record.is_file() and record.read_text(encoding="utf-8") == made:
        return folders
    record.unlink(missing_ok=True)
    tokenizer = make_tokenizer(recipe)
    for model, place in zip(build_pair(recipe, device), (folders.target, folders.drafter), strict=True):
        _save(model, tokenizer, place)
    record.write_text(made, encoding="utf-8")
    return folders


def make_tokenizer(recipe: PairRecipe) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose token n is the word `wn`: the models have no text, but a router needs one."""
    words = {f"w{token}": token for token in range(recipe.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, model_max_length=recipe.context_length, clean_up_tokenization_spaces=False
    )
    return fast


def _save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.generation_config = GenerationConfig(do_sample=False)  # type: ignore[no-untyped-call]
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
