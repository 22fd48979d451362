"""SmolLM2 in plain transformers, and the comparison of served tokens with it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flyserve import ChatMessage, Client

MODEL_NAME = "smollm2"
_TIE = 1e-3
_MOST_TIES = 2


class Reference:
    """The model and its tokenizer as transformers loads them."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def chat_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the prompt of a conversation."""
        found = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return list(found["input_ids"])

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        """Return the new tokens of greedy decoding, as `generate` returns them."""
        ids = torch.tensor([list(prompt)])
        mask = torch.ones_like(ids)
        made = self.model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False)
        found: list[int] = made[0, len(prompt) :].tolist()
        return found

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of new tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    @torch.inference_mode()
    def gap(self, ids: Sequence[int], one: int, other: int) -> float:
        """Return the difference of the logits of two tokens after `ids`."""
        logits = self.model(torch.tensor([list(ids)]), logits_to_keep=1).logits[0, -1]
        return abs(float(logits[one] - logits[other]))

    def assert_same(
        self, prompts: Sequence[list[int]], left: Iterable[list[int]], right: Iterable[list[int]]
    ) -> int:
        """Assert that two lists of responses differ only after a near tie; return how many differ."""
        ties = [
            gap
            for prompt, one, other in zip(prompts, left, right, strict=True)
            if (gap := self._first_gap(prompt, one, other)) is not None
        ]
        assert len(ties) <= _MOST_TIES and all(gap < _TIE for gap in ties), ties
        return len(ties)

    def _first_gap(self, prompt: list[int], one: list[int], other: list[int]) -> float | None:
        """Return the gap of logits where two responses first differ; None if they are equal."""
        if one == other:
            return None
        pairs = enumerate(zip(one, other, strict=False))
        place = next((place for place, (a, b) in pairs if a != b), None)
        assert place is not None, f"one response is longer: {one} and {other}"
        return self.gap(prompt + one[:place], one[place], other[place])


def chat(question: str) -> list[dict[str, str]]:
    """Return a conversation of one question, as over HTTP."""
    return [{"role": "user", "content": question}]


def served_ids(client: Client, messages: Sequence[dict[str, str]]) -> list[int]:
    """Return the prompt of a conversation, as the router tokenizes it."""
    return [token.id for token in client.tokenize([ChatMessage(**message) for message in messages])]
