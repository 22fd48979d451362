"""Greedy responses, several sequences per forward, and how many of them are right."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from transformers import LlamaForCausalLM
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.progress import tqdm
from flyserve.bench.tasks import is_correct, render


def pad_left(sequences: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and attention mask, shape (sequences, longest), so that all end in the last column."""
    width = max(map(len, sequences))
    tokens = [[pad] * (width - len(s)) + list(s) for s in sequences]
    mask = [[0] * (width - len(s)) + [1] * len(s) for s in sequences]
    return torch.tensor(tokens), torch.tensor(mask)


@torch.inference_mode()
def last_logits(
    model: LlamaForCausalLM, tokens: torch.Tensor, mask: torch.Tensor, count: int
) -> torch.Tensor:
    """Return the logits of the last `count` columns in fp32, shape (sequences, count, vocabulary)."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    output = model(
        input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=count
    )
    logits: torch.Tensor = output.logits
    return logits.float()


@torch.inference_mode()
def continue_greedily(
    model: LlamaForCausalLM, sequences: Sequence[Sequence[int]], pad: int, count: int, end: int | None
) -> list[list[int]]:
    """Return up to `count` further tokens of each sequence; with `end`, up to and with that token."""
    tokens, mask = pad_left(sequences, pad)
    output = model.generate(  # type: ignore[misc]
        input_ids=tokens,
        attention_mask=mask,
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=-1 if end is None else end,
        pad_token_id=pad,
    )
    return [_cut(row[tokens.shape[1] :].tolist(), end) for row in output]


def _cut(tokens: list[int], end: int | None) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


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
