"""Measure the pair for its report, with the cost of one forward in transformers' own classes."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DynamicCache, LlamaForCausalLM
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.corpus import Family, Problem, Split, generate
from demo.evaluation.accuracy import respond, score
from demo.evaluation.agreement import measure_agreement
from demo.evaluation.report import AccuracyRow, AgreementRow, CostRow, Report, SpeculationRow
from demo.evaluation.speculation import Simulation
from demo.tokenizer import load_tokenizer, render
from flyserve.core.presets import EXACT
from flyserve.core.types import FlyRule, RejectionReason, Verdict

_CONTEXT = 200
_REPEATS = 150


@torch.inference_mode()
def forward_ms(model: LlamaForCausalLM) -> float:
    """Return the median milliseconds of a one-token forward behind a cached context, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cache = DynamicCache(config=model.config)
        model(input_ids=torch.ones(1, _CONTEXT, dtype=torch.long), past_key_values=cache)
        return 1e3 * statistics.median(_time_forward(model, cache) for _ in range(_REPEATS))
    finally:
        torch.set_num_threads(threads)


def _time_forward(model: LlamaForCausalLM, cache: DynamicCache) -> float:
    began = time.perf_counter()
    model(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
    return time.perf_counter() - began


NAMES = ("target", "drafter")
FLY = FlyRule(threshold=0.3, window=6, min_following=6)
NUM_DRAFTS = 15
_RULES = {"exact": EXACT, "fly": FLY}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SEED = 7
_ACCURACY_PLAN = (
    ("target", "float32", Split.HELD_OUT),
    ("target", "bfloat16", Split.HELD_OUT),
    ("drafter", "float32", Split.HELD_OUT),
    ("target", "float32", Split.HARD),
)


@dataclass(frozen=True, slots=True)
class _Pair:
    target: LlamaForCausalLM
    drafter: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast


def load_model(folder: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    """Load a model folder."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    return model


def measure(models: Path, per_family: int, num_speculated: int) -> Report:
    """Measure accuracy on `per_family` problems, the rest on `num_speculated` problems of each family."""
    target, drafter = (load_model(models / name, torch.float32) for name in NAMES)
    pair = _Pair(target, drafter, load_tokenizer(models / "target"))
    mixed = [p for family in Family for p in generate(_SEED, Split.HELD_OUT, family, num_speculated)]
    return Report(
        parameters={"target": target.num_parameters(), "drafter": drafter.num_parameters()},
        megabytes={name: _megabytes(models / name) for name in NAMES},
        accuracy=_accuracy(models, pair.tokenizer, per_family),
        costs=_costs(models),
        agreement=_agreement(pair, mixed),
        speculation=tuple(_speculation(pair, mixed, name, rule) for name, rule in _RULES.items()),
    )


def _accuracy(models: Path, tokenizer: PreTrainedTokenizerFast, per_family: int) -> tuple[AccuracyRow, ...]:
    rows = []
    for name, dtype, split in _ACCURACY_PLAN:
        model = load_model(models / name, _DTYPES[dtype])
        for family in Family:
            problems = generate(_SEED, split, family, per_family)
            label = f"{name}, {dtype}, {split} {family}"
            responses = respond(model, tokenizer, [p.prompt for p in problems], label)
            share = score(tokenizer, [p.answer for p in problems], responses)
            rows.append(AccuracyRow(name, dtype, split, family, share))
    return tuple(rows)


def _costs(models: Path) -> tuple[CostRow, ...]:
    return tuple(
        CostRow(name, dtype, round(forward_ms(load_model(models / name, _DTYPES[dtype])), 3))
        for dtype in _DTYPES
        for name in NAMES
    )


def _agreement(pair: _Pair, problems: list[Problem]) -> AgreementRow:
    responses = respond(pair.target, pair.tokenizer, [p.prompt for p in problems], "target's own responses")
    prompts = _encode(pair, problems)
    agreement = measure_agreement(pair.target, pair.drafter, prompts, responses, pair.tokenizer.eos_token_id)
    uncertain = agreement.uncertain(FLY.threshold)
    return AgreementRow(agreement.tokens, uncertain, _deciles(agreement.mismatch_entropies))


def _speculation(pair: _Pair, problems: list[Problem], name: str, rule: FlyRule) -> SpeculationRow:
    simulation = Simulation(pair.target, pair.drafter, pair.tokenizer.eos_token_id, rule, NUM_DRAFTS)
    outcome = simulation.run(_encode(pair, problems), f"speculation, {name}")
    return SpeculationRow(
        rule=name,
        tau=round(outcome.tau, 3),
        tokens=sum(map(len, outcome.responses)),
        rescued=outcome.verdicts[Verdict.RESCUED],
        rejected_by_gate=outcome.rejections[RejectionReason.GATE],
        rejected_by_window=outcome.rejections[RejectionReason.WINDOW],
        rejected_by_tail=outcome.rejections[RejectionReason.TAIL],
        share=score(pair.tokenizer, [p.answer for p in problems], outcome.responses),
    )


def _encode(pair: _Pair, problems: list[Problem]) -> list[list[int]]:
    return [pair.tokenizer.encode(render(problem.prompt)) for problem in problems]


def _megabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6, 2)


def _deciles(values: tuple[float, ...]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(round(ordered[len(ordered) * tenth // 10], 3) for tenth in range(1, 10)) if ordered else ()
