"""transformers' own ways of decoding: `generate`, assisted generation, prompt lookup."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.scenarios.peers.measure import LOOKUP_TOKENS, Answer
from services.engine.loading.model import DTYPES


class TransformersPeer:
    """One model, or two for assisted generation, in transformers' own classes with SDPA."""

    def __init__(self, target: Path, drafter: Path, dtype: str, method: str) -> None:
        self._model = load_plain(target, dtype)
        self._options: dict[str, Any] = {}
        if method == "assisted":
            self._options["assistant_model"] = load_plain(drafter, dtype)
        elif method == "lookup":
            self._options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        self._method = method

    def describe(self) -> dict[str, Any]:
        """Return what differs from transformers' defaults."""
        return {"method": self._method, "attention": self._model.config._attn_implementation}

    @torch.inference_mode()
    def decode(self, method: str, prompt: Sequence[int], max_new_tokens: int) -> Answer:
        """Decode one response, with greedy sampling."""
        if method != self._method:
            raise ValueError(f"method is {method!r}, was loaded for {self._method!r}")
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
