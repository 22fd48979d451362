"""Token counts of one sequence for its penalties, kept from step to step and updated by the difference."""

from array import array

import numpy as np
import torch
from torch import Tensor

from flyserve.core.noise import Ints
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput

_MANY = 4096
"""Tokens from which on the penalties of all ids are set, instead of finding those that have changed."""


class TokenCounts:
    """Counts of a sequence's tokens, and what the penalties of its next token follow from.

    Memory per sequence: 4 bytes per token, 8 bytes per id on the host and as many on the device.

    Attributes:
        divisors: Repetition penalty by id, 1 where a token was not seen, (vocabulary,); None without one.
        subtracted: Presence and frequency penalty by id, (vocabulary,); None without any.
    """

    def __init__(
        self, vocab_size: int, sampling: SamplingParams, prompt_length: int, device: torch.device
    ) -> None:
        self._sampling = sampling
        self._prompt_length = prompt_length
        self._tokens = array("i")
        self._seen = np.zeros(vocab_size, dtype=np.int32)
        self._written = np.zeros(vocab_size, dtype=np.int32)
        self.divisors = torch.ones(vocab_size, device=device) if sampling.repetition_penalty != 1.0 else None
        adds = sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        self.subtracted = torch.zeros(vocab_size, device=device) if adds else None

    def fits(self, item: ForwardInput) -> bool:
        """Check that the counts were begun for inputs like this one."""
        return self._sampling == item.sampling and self._prompt_length == item.prompt_length

    def count(self, item: ForwardInput) -> None:
        """Count the tokens before the first one that the input chooses; if it chooses none, only drop tokens.

        The tokens whose KV the input reads are those of earlier inputs of the same slot, except those that
        were shared from another sequence since. So the tokens before both are counted already.
        """
        unchanged = min(len(self._tokens), item.start - item.num_reused)
        end = item.first_position if item.num_outputs else unchanged
        dropped = np.array(self._tokens[unchanged:])
        added = array("i", item.history[unchanged:end])
        self._add(dropped, unchanged, -1)
        self._add(np.array(added), unchanged, 1)
        del self._tokens[unchanged:]
        self._tokens.extend(added)
        if len(dropped) + len(added) > _MANY:
            self._update(np.arange(len(self._seen)))
        elif len(dropped) + len(added):
            self._update(np.union1d(dropped, added).astype(np.int64))

    def rows(self, ids: Ints, later: Ints) -> tuple[Tensor, Tensor]:
        """Return how often ids were seen and written before each of several outputs, (outputs, ids).

        `later` are the tokens between the first output and the last.
        """
        is_id = later[:, None] == ids
        is_written = np.arange(len(later)) + len(self._tokens) >= self._prompt_length
        seen = np.concatenate([self._seen[None, ids], is_id]).cumsum(axis=0)
        written = np.concatenate([self._written[None, ids], is_id & is_written[:, None]]).cumsum(axis=0)
        return torch.from_numpy(seen), torch.from_numpy(written).float()

    def _add(self, tokens: Ints, first: int, sign: int) -> None:
        np.add.at(self._seen, tokens, sign)
        np.add.at(self._written, tokens[max(0, self._prompt_length - first) :], sign)

    def _update(self, ids: Ints) -> None:
        """Set the penalties of ids whose counts have changed."""
        index = torch.from_numpy(ids)
        if self.divisors is not None:
            is_seen = torch.from_numpy(self._seen[ids] > 0)
            divisors = torch.where(is_seen, self._sampling.repetition_penalty, 1.0)
            self.divisors[index.to(self.divisors.device)] = divisors.to(self.divisors.device)
        if self.subtracted is not None:
            penalties = subtracted_penalties(self._sampling, torch.from_numpy(self._written[ids]).float())
            self.subtracted[index.to(self.subtracted.device)] = penalties.to(self.subtracted.device)


def subtracted_penalties(sampling: SamplingParams, written: Tensor) -> Tensor:
    """Return frequency and presence penalty of tokens that were written so often, float32."""
    return sampling.frequency_penalty * written + sampling.presence_penalty * (written > 0)
