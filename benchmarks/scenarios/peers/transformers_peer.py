"""transformers' own ways of decoding."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.scenarios.peers.plan import LOOKUP_TOKENS, Answer
from services.engine.loading.model import DTYPES


class TransformersPeer:
    """One model, or two for assisted generation, in transformers' own classes with SDPA."""

    def __init__(
        self, target: Path, drafter: Path | None, dtype: str, method: str, device: str = "cpu"
    ) -> None:
        self._model, self._device = load_plain(target, dtype).to(device), device
        self._options: dict[str, Any] = {}
        if method == "assisted" and drafter is not None:
            self._options["assistant_model"] = load_plain(drafter, dtype)
        elif method == "lookup":
            self._options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS

    @torch.inference_mode()
    def decode(self, prompt: Sequence[int], max_new_tokens: int) -> Answer:
        """Decode one response, with greedy sampling."""
        ids = torch.tensor([list(prompt)], device=self._device)
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
