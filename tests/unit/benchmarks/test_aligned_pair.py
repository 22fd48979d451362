from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.aligned_pair.folders import ensure_pair
from benchmarks.aligned_pair.models import agreement, build_pair, draw_bigrams
from benchmarks.aligned_pair.recipe import PairRecipe, Shape
from flyserve.core.messages import Role
from router.text.tokenizer import Tokenizer
from services.engine.config import ModelConfig
from services.engine.forward.torch_runner import load_runner

TINY = PairRecipe(
    target=Shape(64, 96, 2, 4, 2), drafter=Shape(32, 48, 1, 2, 1), vocab_size=256, context_length=64
)
torch.set_num_threads(1)
IDS = torch.randint(0, TINY.vocab_size, (8, 32), generator=torch.Generator().manual_seed(1))


def agreement_at(noise: float) -> float:
    return agreement(*build_pair(replace(TINY, noise=noise)), IDS)


def test_agreement_falls_with_noise() -> None:
    shares = [agreement_at(noise) for noise in (0.0, 0.08, 0.3, 2.0)]
    assert shares == sorted(shares, reverse=True) and len(set(shares)) == 4
    assert shares[0] == 1.0 and shares[-1] < 0.2


def test_text_runs_through_the_vocabulary_before_it_repeats() -> None:
    recipe = replace(TINY, branch=0.0)
    bigrams = draw_bigrams(recipe)
    successors = (bigrams.code @ bigrams.head.T).argmax(-1).tolist()
    for token in (0, 7, 200):
        seen = set()
        while token not in seen:
            seen.add(token)
            token = successors[token]
        assert len(seen) == TINY.vocab_size


def test_a_seed_gives_one_pair() -> None:
    def weights(recipe: PairRecipe) -> list[torch.Tensor]:
        return [weight for model in build_pair(recipe) for weight in model.state_dict().values()]

    torch.manual_seed(11)
    once = weights(TINY)
    torch.manual_seed(12)
    assert all(torch.equal(a, b) for a, b in zip(once, weights(TINY), strict=True))
    other = weights(replace(TINY, seed=5))
    assert not any(torch.equal(a, b) for a, b in zip(once, other, strict=True) if a.dim() > 1)


def test_sizes_are_counted_as_the_models_have_them() -> None:
    for model, shape in zip(build_pair(TINY), (TINY.target, TINY.drafter), strict=True):
        assert shape.num_parameters(TINY.vocab_size) == sum(weight.numel() for weight in model.parameters())


def test_the_folders_serve_and_are_made_once(tmp_path: Path) -> None:
    folders = ensure_pair(TINY, tmp_path)
    runners = [
        load_runner(ModelConfig(model=folder, role=Role.TARGET, dtype="float32"))
        for folder in (folders.target, folders.drafter)
    ]
    assert len({runner.info.token_map_hash for runner in runners}) == 1
    assert all(runner.info.vocab_size == TINY.vocab_size for runner in runners)
    tokenizer = Tokenizer.load(folders.target)
    assert tokenizer.backend.decode(tokenizer.encode("w5 w17")) == "w5 w17" and tokenizer.eos_ids == ()
    before = folders.target.joinpath("model.safetensors").stat().st_mtime_ns
    ensure_pair(TINY, tmp_path)
    assert folders.target.joinpath("model.safetensors").stat().st_mtime_ns == before
    ensure_pair(replace(TINY, seed=1), tmp_path)
    assert folders.target.joinpath("model.safetensors").stat().st_mtime_ns > before
