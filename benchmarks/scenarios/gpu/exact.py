"""The engine's greedy tokens against those of transformers: alone, batched, and in verifications."""

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.scenarios.gpu.forward import load, new_slot, rows_of
from benchmarks.scenarios.gpu.plan import Case, Plan
from benchmarks.scenarios.gpu.results import Exactness
from benchmarks.scenarios.peers.transformers_peer import TransformersPeer
from services.engine.config import Dtype
from services.engine.forward.torch_runner import TorchRunner
from services.engine.head.head_scorer import HeadScorer

_VERIFIED = 16
Ids = list[int]


def measure_exactness(plan: Plan, folder: Path) -> list[Exactness]:
    """Decode the same prompts by transformers and by the engine, in both types."""
    found = list[Exactness]()
    for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16):
        prompts, peer = _prompts(plan), TransformersPeer(folder, None, dtype.value, "generate", plan.device)
        expected = [[*each, *peer.decode(each, plan.exact_tokens).tokens] for each in prompts]
        room = Case(max(map(len, expected)), len(prompts), _VERIFIED)
        runner = load(folder, plan.device, dtype, (room,))
        found.append(_compare(plan, runner, dtype, prompts, expected))
    return found


def _compare(
    plan: Plan, runner: TorchRunner, dtype: Dtype, prompts: Sequence[Ids], expected: Sequence[Ids]
) -> Exactness:
    scorer = HeadScorer(runner)
    alone = [decode(scorer, [prompt], plan.exact_tokens)[0] for prompt in prompts]
    together = decode(scorer, prompts, plan.exact_tokens)
    pairs = list(zip(alone, expected, strict=True))
    differing = [_first_difference(runner, ids, plain) for ids, plain in pairs if ids != plain]
    return Exactness(
        forward=runner.description,
        dtype=dtype.value,
        prompts=len(prompts),
        equal=sum(ids == plain for ids, plain in pairs),
        differences=differing,
        batched_equal=together == alone,
        verified_equal=_verified_share(scorer, alone, prompts),
    )


def _prompts(plan: Plan) -> list[Ids]:
    generator = torch.Generator().manual_seed(5)
    vocab = plan.chaos.vocab_size
    return [torch.randint(vocab, (n,), generator=generator).tolist() for n in plan.exact_prompts]


def decode(scorer: HeadScorer, prompts: Sequence[Ids], count: int) -> list[Ids]:
    """Return the prompts, each with its next tokens, decoded together."""
    sequences = [list(prompt) for prompt in prompts]
    slots = [new_slot(scorer, len(prompt) + count) for prompt in prompts]
    starts = [0] * len(prompts)
    for _ in range(count):
        batch = [
            rows_of(slot, ids[start:], start, 1)
            for slot, ids, start in zip(slots, sequences, starts, strict=True)
        ]
        starts = [len(ids) for ids in sequences]
        for ids, scores in zip(sequences, scorer.forward(batch), strict=True):
            ids.append(scores.choices[0])
    for slot in slots:
        scorer.free(slot)
    return sequences


def _verified_share(scorer: HeadScorer, responses: Sequence[Ids], prompts: Sequence[Ids]) -> float:
    same = total = 0
    for ids, prompt in zip(responses, prompts, strict=True):
        slot, first = new_slot(scorer, len(ids)), len(prompt) - 1
        scorer.forward([rows_of(slot, ids[:first], 0, 0)])
        for start in range(first, len(ids) - _VERIFIED, _VERIFIED):
            (scores,) = scorer.forward([rows_of(slot, ids[start : start + _VERIFIED], start)])
            following = ids[start + 1 : start + _VERIFIED + 1]
            same += sum(a == b for a, b in zip(scores.choices, following, strict=True))
            total += _VERIFIED
        scorer.free(slot)
    return same / total


def _first_difference(runner: TorchRunner, ids: Ids, plain: Ids) -> str:
    """Describe it: a gap between the best logits within the type's rounding is no fault."""
    index = next(n for n, pair in enumerate(zip(ids, plain, strict=True)) if pair[0] != pair[1])
    slot = new_slot(runner, index)
    best, second = runner.logits([rows_of(slot, ids[:index], 0, 1)])[0].float().topk(2).values.tolist()
    runner.free(slot)
    gap = (best - second) / abs(best)
    return f"token {index} of {len(ids)}, where the two best logits are {gap:.1e} of the best apart"
