"""The engine's greedy tokens against those of transformers: alone, batched, and in verifications."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.scenarios.gpu.engine import load, new_slot, rows_of
from benchmarks.scenarios.gpu.plan import Case, Plan
from benchmarks.scenarios.gpu.results import Exactness
from benchmarks.scenarios.peers.transformers_peer import load_plain
from services.engine.config import Dtype
from services.engine.forward.torch_runner import TorchRunner

_VERIFIED = 16
_UNFUSED = "gelu"
"""An activation that the fused forward does not compute."""
Ids = list[int]


def measure_exactness(plan: Plan, folder: Path) -> list[Exactness]:
    """Decode the same prompts by transformers and by both forwards of the engine, in both types."""
    ragged = unfused_copy(folder)
    models = (folder, ragged)
    return [_compare(plan, model, dtype) for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16) for model in models]


def unfused_copy(folder: Path) -> Path:
    """Return a folder with the same weights and another activation, for which the engine runs ragged."""
    copy = folder.with_name(f"{folder.name}-{_UNFUSED}")
    copy.mkdir(exist_ok=True)
    for file in folder.iterdir():
        target = copy / file.name
        if file.name == "config.json":
            config = json.loads(file.read_text(encoding="utf-8"))
            target.write_text(json.dumps({**config, "hidden_act": _UNFUSED}), encoding="utf-8")
        elif file.suffix == ".safetensors":
            target.unlink(missing_ok=True)
            target.symlink_to(file.resolve())
        else:
            shutil.copyfile(file, target)
    return copy


def _compare(plan: Plan, folder: Path, dtype: Dtype) -> Exactness:
    prompts = _prompts(plan)
    expected = _decode_plain(folder, dtype, prompts, plan)
    room = Case(max(map(len, expected)), len(prompts), _VERIFIED)
    runner = load(folder, plan.device, dtype, (room,))
    alone = [decode(runner, [prompt], plan.exact_tokens)[0] for prompt in prompts]
    together = decode(runner, prompts, plan.exact_tokens)
    pairs = list(zip(alone, expected, strict=True))
    differing = [_first_difference(runner, ids, plain) for ids, plain in pairs if ids != plain]
    return Exactness(
        forward=runner.description,
        dtype=dtype.value,
        prompts=len(prompts),
        equal=sum(ids == plain for ids, plain in pairs),
        differences=differing,
        batched_equal=together == alone,
        verified_equal=_verified_share(runner, alone, prompts),
    )


def _prompts(plan: Plan) -> list[Ids]:
    generator = torch.Generator().manual_seed(5)
    vocab = plan.chaos.vocab_size
    return [torch.randint(vocab, (n,), generator=generator).tolist() for n in plan.exact_prompts]


def _decode_plain(folder: Path, dtype: Dtype, prompts: Sequence[Ids], plan: Plan) -> list[Ids]:
    model = load_plain(folder, dtype.value).to(plan.device)

    def generate(prompt: Ids) -> Ids:
        ids = torch.tensor([prompt], device=plan.device)
        count = plan.exact_tokens
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
        tokens: Ids = found[0].tolist()
        return tokens

    with torch.inference_mode():
        return [generate(prompt) for prompt in prompts]


def decode(runner: TorchRunner, prompts: Sequence[Ids], count: int) -> list[Ids]:
    """Return the prompts, each with its next tokens, decoded together."""
    sequences = [list(prompt) for prompt in prompts]
    slots = [new_slot(runner, len(prompt) + count) for prompt in prompts]
    starts = [0] * len(prompts)
    for _ in range(count):
        batch = [
            rows_of(slot, ids[start:], start, 1)
            for slot, ids, start in zip(slots, sequences, starts, strict=True)
        ]
        starts = [len(ids) for ids in sequences]
        for ids, scores in zip(sequences, runner.forward(batch), strict=True):
            ids.append(scores.choices[0])
    for slot in slots:
        runner.free(slot)
    return sequences


def _verified_share(runner: TorchRunner, responses: Sequence[Ids], prompts: Sequence[Ids]) -> float:
    same = total = 0
    for ids, prompt in zip(responses, prompts, strict=True):
        slot, first = new_slot(runner, len(ids)), len(prompt) - 1
        runner.forward([rows_of(slot, ids[:first], 0, 0)])
        for start in range(first, len(ids) - _VERIFIED, _VERIFIED):
            (scores,) = runner.forward([rows_of(slot, ids[start : start + _VERIFIED], start)])
            following = ids[start + 1 : start + _VERIFIED + 1]
            same += sum(a == b for a, b in zip(scores.choices, following, strict=True))
            total += _VERIFIED
        runner.free(slot)
    return same / total


def _first_difference(runner: TorchRunner, ids: Ids, plain: Ids) -> str:
    """Describe it: a gap between the best logits within the type's rounding is no fault."""
    index = next(n for n, pair in enumerate(zip(ids, plain, strict=True)) if pair[0] != pair[1])
    slot = new_slot(runner, index)
    best, second = runner.logits([rows_of(slot, ids[:index], 0, 1)])[0].float().topk(2).values.tolist()
    runner.free(slot)
    gap = (best - second) / abs(best)
    return f"token {index} of {len(ids)}, where the two best logits are {gap:.1e} of the best apart"
