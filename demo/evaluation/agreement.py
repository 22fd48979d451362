"""Agreement of drafter and target, and the target's certainty at their differences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM

from demo.evaluation.accuracy import BATCH, Share, last_logits, pad_left


@dataclass(frozen=True, slots=True)
class Agreement:
    """Teacher-forced comparison on the target's own greedy responses.

    Attributes:
        tokens: Positions at which both take the same token.
        mismatch_entropies: The target's top-3 entropy, in nats, at each position where they differ.
    """

    tokens: Share
    mismatch_entropies: tuple[float, ...]

    def uncertain(self, threshold: float) -> Share:
        """Return the share of mismatches at which the target's entropy reaches a threshold."""
        return Share(sum(e >= threshold for e in self.mismatch_entropies), len(self.mismatch_entropies))


def top3_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return `-sum p ln p` over the three largest probabilities of the full softmax, in nats."""
    log_p = logits.topk(3, dim=-1).values - logits.logsumexp(-1, keepdim=True)
    return -(log_p.exp() * log_p).sum(-1)


def measure_agreement(
    target: LlamaForCausalLM,
    drafter: LlamaForCausalLM,
    prompts: Sequence[list[int]],
    responses: Sequence[list[int]],
    pad: int,
) -> Agreement:
    """Compare the two at every token of the responses."""
    entropies: list[float] = []
    total = 0
    for start in range(0, len(prompts), BATCH):
        pairs = list(zip(prompts, responses, strict=True))[start : start + BATCH]
        tokens, mask = pad_left([[*prompt, *response[:-1]] for prompt, response in pairs], pad)
        longest = max(len(response) for _, response in pairs)
        by_target, by_drafter = (last_logits(m, tokens, mask, longest) for m in (target, drafter))
        lengths = torch.tensor([[len(response)] for _, response in pairs])
        counted = torch.arange(longest) >= longest - lengths
        differs = (by_target.argmax(-1) != by_drafter.argmax(-1)) & counted
        entropies += top3_entropy(by_target[differs]).tolist()
        total += int(counted.sum())
    return Agreement(Share(total - len(entropies), total), tuple(entropies))
