"""Greedy responses and how many of them are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from transformers import LlamaForCausalLM
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.evaluation.batching import continue_greedily
from demo.progress import tqdm
from flyserve.bench.tasks import is_correct, render

BATCH = 50
MAX_NEW_TOKENS = 256
_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Share:
    """A measured share of a number of trials."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        return self.hits / self.trials

    def interval(self) -> tuple[float, float]:
        """Wilson's 95% confidence interval."""
        n, p, z = self.trials, self.value, _Z95
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return middle - half, middle + half


def respond(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], label: str
) -> list[list[int]]:
    """Return the model's greedy response to each prompt as token ids, up to and with the end of text."""
    encoded = [tokenizer.encode(render(prompt)) for prompt in prompts]
    end = tokenizer.eos_token_id
    responses: list[list[int]] = []
    for start in tqdm(range(0, len(encoded), BATCH), desc=label, leave=False):
        batch = encoded[start : start + BATCH]
        responses += continue_greedily(model, batch, end, MAX_NEW_TOKENS, end)
    return responses


def score(
    tokenizer: PreTrainedTokenizerFast, answers: Sequence[str], responses: Sequence[Sequence[int]]
) -> Share:
    """Count the responses that end with their answer."""
    texts = [str(tokenizer.decode(list(response), skip_special_tokens=True)) for response in responses]
    return Share(sum(map(is_correct, texts, answers)), len(answers))
