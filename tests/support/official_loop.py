"""AMD's published FLy loop, greedy, as a reference: plain transformers, one sequence, 15 drafts a round."""

import torch
from transformers import DynamicCache, PreTrainedModel

N, WINDOW, THRESHOLD = 15, 5, 0.3


class Greedy:
    """A model with its cache for one growing sequence."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.cache, self.seen = model, DynamicCache(config=model.config), 0

    def logits(self, ids: list[int], count: int) -> torch.Tensor:
        """Return the logits of the last `count` positions of `ids`, rolling the cache back if needed."""
        keep = min(self.seen, len(ids) - count)
        if self.seen > keep:
            self.cache.crop(keep - self.seen)
        new = torch.tensor([ids[keep:]])
        self.seen = len(ids)
        return self.model(new, past_key_values=self.cache, use_cache=True).logits[0, -count:].float()


@torch.inference_mode()
def official_response(
    target: PreTrainedModel, drafter: PreTrainedModel, prompt: list[int], end: int, max_new: int
) -> tuple[list[int], list[float]]:
    """Return the tokens up to the end, and at each the gap between the target's two best logits.

    The first token is the target's own, as in FlyServe; the published loop follows it.
    """
    scorer, proposer, ids, gaps = Greedy(target), Greedy(drafter), list(prompt), []
    while len(ids) - len(prompt) < max_new:
        length = N if len(ids) > len(prompt) else 0
        draft: list[int] = []
        while len(draft) < length:
            draft.append(int(proposer.logits(ids + draft, 1).argmax()))
        logits = scorer.logits(ids + draft, length + 1)
        choices = logits.argmax(-1).tolist()
        top = logits.log_softmax(-1).topk(3).values
        entropy = -(top.exp() * top).sum(-1)
        mismatches = [j for j in range(length) if draft[j] != choices[j]]
        kept = length
        for j in mismatches:
            is_crowded = any(j < other <= j + WINDOW for other in mismatches)
            if entropy[j] < THRESHOLD or j > N - 7 or is_crowded:
                kept = j
                break
        ids += [*draft[:kept], choices[kept]]
        best = logits.topk(2).values
        gaps += (best[:, 0] - best[:, 1])[: kept + 1].tolist()
        if end in ids[len(prompt) :]:
            break
    response = ids[len(prompt) :]
    kept = response.index(end) + 1 if end in response else max_new
    return response[:kept], gaps[:kept]
