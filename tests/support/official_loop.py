"""AMD's published FLy loop, greedy, as a reference: one sequence, 15 drafts in every round."""

from typing import Protocol

import torch
from transformers import DynamicCache, PreTrainedModel

N, WINDOW, THRESHOLD = 15, 5, 0.3


class Model(Protocol):
    """A model of the pair."""

    def judge(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        """Return the choices after the last `count` positions of `ids`, and the entropies there."""


class Greedy(Model):
    """A model of plain transformers with its cache for one growing sequence."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.cache, self.seen = model, DynamicCache(config=model.config), 0

    def judge(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        logits = self._logits(ids, count)
        top = logits.log_softmax(-1).topk(3).values
        return logits.argmax(-1).tolist(), (-(top.exp() * top).sum(-1)).tolist()

    @torch.inference_mode()
    def _logits(self, ids: list[int], count: int) -> torch.Tensor:
        """Return the logits of the last `count` positions of `ids`, rolling the cache back if needed."""
        keep = min(self.seen, len(ids) - count)
        if self.seen > keep:
            self.cache.crop(keep - self.seen)
        new = torch.tensor([ids[keep:]])
        self.seen = len(ids)
        return self.model(new, past_key_values=self.cache, use_cache=True).logits[0, -count:].float()


def official_response(target: Model, drafter: Model, prompt: list[int], end: int, max_new: int) -> list[int]:
    """Return the tokens up to the end."""
    ids = list(prompt)
    while len(ids) - len(prompt) < max_new:
        draft: list[int] = []
        while len(draft) < N:
            draft += drafter.judge(ids + draft, 1)[0]
        choices, entropies = target.judge(ids + draft, N + 1)
        mismatches = [j for j in range(N) if draft[j] != choices[j]]
        kept = N
        for j in mismatches:
            is_crowded = any(j < other <= j + WINDOW for other in mismatches)
            if entropies[j] < THRESHOLD or j > N - 7 or is_crowded:
                kept = j
                break
        ids += [*draft[:kept], choices[kept]]
        if end in ids[len(prompt) :]:
            break
    response = ids[len(prompt) :]
    length = response.index(end) + 1 if end in response else max_new
    return response[:length]
