"""Log-probabilities of the raw logits, for those who ask."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fly.types import PositionLogprobs


def logprobs(
    logits: Tensor, choices: Sequence[int], drafts: Sequence[int], count: int
) -> tuple[PositionLogprobs, ...]:
    """Of the drafts, the choices and the most likely tokens of each row.

    Args:
        logits: (rows, vocabulary), raw.
        choices: One per row.
        drafts: One per row, -1 for none.
        count: How many of the most likely tokens.
    """
    total = logits.logsumexp(-1)
    told = torch.tensor([choices, [max(0, draft) for draft in drafts]], device=logits.device).T
    chosen = (logits.gather(1, told) - total[:, None]).tolist()
    values, ids = logits.topk(min(count, logits.shape[1]), dim=-1)
    tops = zip(ids.tolist(), (values - total[:, None]).tolist(), strict=True)
    return tuple(
        PositionLogprobs(of_draft if draft >= 0 else None, of_choice, tuple(zip(*top, strict=True)))
        for draft, (of_choice, of_draft), top in zip(drafts, chosen, tops, strict=True)
    )
