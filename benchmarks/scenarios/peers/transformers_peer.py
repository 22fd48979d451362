"""transformers' ways of decoding, and the verification of many sequences by it and by the engine alone."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.scenarios.peers.measure import LOOKUP_TOKENS, Answer
from fly.messages import Role
from fly.request import SamplingParams
from services.engine.base import ForwardInput, KvSlot
from services.engine.config import Dtype, ModelConfig
from services.engine.forward.torch_runner import load_runner
from services.engine.loading.model import DTYPES

NUM_SEQUENCES = 16
CONTEXT_TOKENS = 256
_MOST_ROWS = 16


class TransformersPeer:
    """One model, or two for assisted generation, in transformers' own classes with SDPA."""

    def __init__(self, target: Path, drafter: Path | None, dtype: str, method: str) -> None:
        self._model = load_plain(target, dtype)
        self._options: dict[str, Any] = {}
        if method == "assisted" and drafter is not None:
            self._options["assistant_model"] = load_plain(drafter, dtype)
        elif method == "lookup":
            self._options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS

    @torch.inference_mode()
    def decode(self, prompt: Sequence[int], max_new_tokens: int) -> Answer:
        """Decode one response, with greedy sampling."""
        ids = torch.tensor([list(prompt)])
        start = time.perf_counter()
        found = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=0,
            **self._options,
        )
        seconds = time.perf_counter() - start
        return Answer(tuple(found[0, len(prompt) :].tolist()), seconds)


def load_plain(folder: Path, dtype: str) -> Any:
    """Return the model as transformers loads it."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[dtype], attn_implementation="sdpa", local_files_only=True
    )
    return model.eval()


class VerificationRig:
    """The same prefilled sequences in engine and transformers, whose last rows are verified repeatedly."""

    def __init__(self, target: Path, dtype: str) -> None:
        room = CONTEXT_TOKENS + _MOST_ROWS
        self._runner = load_runner(
            ModelConfig(
                role=Role.TARGET,
                model=target,
                dtype=Dtype(dtype),
                max_sequences=NUM_SEQUENCES,
                kv_tokens=2 * NUM_SEQUENCES * room,
            )
        )
        self._model = load_plain(target, dtype)
        generator = torch.Generator().manual_seed(0)
        vocab_size = self._runner.info.vocab_size
        self._ids = torch.randint(0, vocab_size, (NUM_SEQUENCES, room), generator=generator)
        self._slots = [self._prefill(index) for index in range(NUM_SEQUENCES)]
        self._caches = [self._prefill_plain(index) for index in range(NUM_SEQUENCES)]
        self._ways: dict[str, Callable[[int], None]] = {
            "batched": self._batched,
            "one by one": self._one_by_one,
            "transformers": self._plain,
        }

    def seconds(self, way: str, num_rows: int) -> float:
        """Return the seconds for `num_rows` rows of every sequence."""
        start = time.perf_counter()
        self._ways[way](num_rows)
        return time.perf_counter() - start

    def _batched(self, num_rows: int) -> None:
        self._runner.forward([self._work(index, num_rows) for index in range(NUM_SEQUENCES)])

    def _one_by_one(self, num_rows: int) -> None:
        for index in range(NUM_SEQUENCES):
            self._runner.forward([self._work(index, num_rows)])

    @torch.inference_mode()
    def _plain(self, num_rows: int) -> None:
        end = CONTEXT_TOKENS + num_rows
        for ids, cache in zip(self._ids, self._caches, strict=True):
            rows = ids[None, CONTEXT_TOKENS:end]
            self._model(rows, past_key_values=cache, use_cache=True).logits.argmax(-1).tolist()
            cache.crop(-num_rows)

    def _work(self, index: int, num_rows: int) -> ForwardInput:
        end = CONTEXT_TOKENS + num_rows
        tokens = self._ids[index, CONTEXT_TOKENS:end].tolist()
        return ForwardInput(self._slots[index], CONTEXT_TOKENS, tokens, num_rows, SamplingParams(), 0, ())

    def _prefill(self, index: int) -> KvSlot:
        slot = self._runner.allocate(CONTEXT_TOKENS + _MOST_ROWS)
        assert slot is not None, "the KV cache has room for every sequence"
        tokens = self._ids[index, :CONTEXT_TOKENS].tolist()
        self._runner.forward([ForwardInput(slot, 0, tokens, 0, SamplingParams(), 0, ())])
        return slot

    @torch.inference_mode()
    def _prefill_plain(self, index: int) -> Any:
        cache = DynamicCache(config=self._model.config)
        self._model(self._ids[index : index + 1, :CONTEXT_TOKENS], past_key_values=cache, use_cache=True)
        return cache
