"""Training batches: packed rows that depend on nothing but the recipe and the step."""

import random
from dataclasses import dataclass

import torch
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.corpus import Family, Split, draw
from demo.corpus.auxiliary import repetition, sums
from demo.corpus.wording import CITIES, CONTAINERS, NAMES, THINGS, VARIABLES
from demo.tokenizer import render
from demo.training.recipes import Recipe

_MISSES_BEFORE_FULL = 6


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed rows and the predictions that count.

    Attributes:
        tokens: Token ids, shape (rows, length).
        index: Where a counted prediction is made, as an index into the flattened tokens.
        labels: The token to be predicted there.
        weights: The prediction's weight in the loss.
    """

    tokens: torch.Tensor
    index: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Sequence:
    tokens: list[int]
    prompt_length: int


class BatchSource:
    """Makes the batch of any step, so that a resumed training sees what an unbroken one would."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> None:
        self._recipe = recipe
        self._tokenizer = tokenizer
        self._weights = _token_weights(tokenizer, recipe.data.content_weight)

    def batch(self, step: int) -> Batch:
        """Return the batch of a step."""
        data = self._recipe.data
        rng = random.Random(f"{self._recipe.name}/{self._recipe.seed}/{step}")
        length = data.row_length_at(step)
        rows = self._pack(rng, data.rows_at(step), length, step / self._recipe.schedule.steps)
        return self._collate(rows, length)

    def _pack(self, rng: random.Random, num_rows: int, length: int, progress: float) -> list[list[_Sequence]]:
        """Put whole sequences into the first row with room, until several in a row fit nowhere."""
        rows: list[list[_Sequence]] = [[] for _ in range(num_rows)]
        room = [length] * num_rows
        misses = 0
        while misses < _MISSES_BEFORE_FULL:
            sequence = self._draw(rng, progress)
            needed = len(sequence.tokens)
            row = next((i for i in range(num_rows) if room[i] >= needed), None)
            if row is None:
                misses += 1
                continue
            rows[row].append(sequence)
            room[row] -= needed
        return rows

    def _draw(self, rng: random.Random, progress: float) -> _Sequence:
        prompt, response = self._draw_text(rng, progress)
        prompt_ids = self._encode(render(prompt))
        tokens = [*prompt_ids, *self._encode(response), self._tokenizer.eos_token_id]
        return _Sequence(tokens, len(prompt_ids))

    def _draw_text(self, rng: random.Random, progress: float) -> tuple[str, str]:
        data = self._recipe.data
        kind = rng.random()
        if kind < data.sums_share_at(progress):
            return sums(rng)
        if kind < data.sums_share_at(progress) + data.repetition_share_at(progress):
            return repetition(rng)
        family = rng.choices(list(data.shares), list(data.shares.values()))[0]
        problem = draw(rng, Split.TRAIN, Family(family), self._recipe.style)
        return problem.prompt, problem.response

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def _collate(self, rows: list[list[_Sequence]], length: int) -> Batch:
        tokens = torch.full((len(rows), length), self._tokenizer.eos_token_id)
        index: list[int] = []
        for number, row in enumerate(rows):
            ids = [token for sequence in row for token in sequence.tokens]
            tokens[number, : len(ids)] = torch.tensor(ids)
            start = number * length
            for sequence in row:
                index += range(start + sequence.prompt_length - 1, start + len(sequence.tokens) - 1)
                start += len(sequence.tokens)
        where = torch.tensor(index)
        labels = tokens.flatten()[where + 1]
        return Batch(tokens, where, labels, self._weights[labels])


def _token_weights(tokenizer: PreTrainedTokenizerFast, content_weight: float) -> torch.Tensor:
    """Weight of each token in the loss: digits, names and things count more than wording."""
    words = {*NAMES, *THINGS, *CONTAINERS, *CITIES, *VARIABLES}
    weights = torch.ones(len(tokenizer))
    for token, index in tokenizer.get_vocab().items():
        word = token.removeprefix("Ġ")
        if word.isdigit() or word in words or (len(word) == 1 and word.isupper()):
            weights[index] = content_weight
    return weights
