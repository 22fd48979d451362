"""The head: from logits to choices, entropies and log-probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from flyserve.core.noise import BLOCK
from services.engine.base import ForwardInput, KvSlot, Scores
from services.engine.head.candidates import Candidates, FewCandidates
from services.engine.head.chunks import Part, chunks_of, spans_of
from services.engine.head.facts import RawFacts, add_gaps
from services.engine.head.finite import Fault, bad_rows, cut, joined, position, raw_fault, within
from services.engine.head.grammar_masks import PATIENCE_S
from services.engine.head.leading import argmax
from services.engine.head.logit_candidates import LogitCandidates
from services.engine.head.logits_processors import (
    LogitsProcessors,
    blame,
    excluded_drafts,
    needs_processing,
)
from services.engine.head.mass import Mass
from services.engine.head.sampler import DrawnToken, Sampler, sample_requests, sampled_scores

_CHUNK_LOGITS = {"cpu": 2**21}
"""Logits of a chunk of rows, by the type of the device: enough that few calls of torch are due to chunks."""
_SLICE_LOGITS = {"cpu": 2**17}
"""Logits of a slice of a chunk, whose intermediate results stay in the cache of a CPU core."""
_LARGE_CHUNK_LOGITS = 2**25
"""Logits of chunks and slices on other devices: enough to fill a GPU, in 0.4 GB for any batch."""
_FEW_TOKENS = 2**12
"""Largest vocabulary that is sampled in numpy: a call of torch takes longer than its computation there.

It does not depend on the number of rows, because both ways round differently.
"""


class Head:
    """Scores all output rows of a batch: logits processors, then greedy choice or sampling.

    The rows are computed in chunks, in memory that is kept, so that a head never needs more of it than for
    one chunk, and that of the token counts of sequences with penalties.
    """

    def __init__(self, vocab_size: int, mask_patience_s: float = PATIENCE_S) -> None:
        """Make a head; scores whose masks take longer than `mask_patience_s` after a forward are late."""
        self._vocab_size = vocab_size
        self._num_blocks = -(-vocab_size // BLOCK)
        self._processors = LogitsProcessors(vocab_size, mask_patience_s)
        self._rows = self._scratch = torch.empty(0)

    def start(self, batch: Sequence[ForwardInput]) -> None:
        """Begin the part of the work that needs no logits, in other threads; called before the forward."""
        self._processors.start(batch)

    def __call__(self, logits: Tensor, batch: Sequence[ForwardInput]) -> list[Scores]:
        """Return the scores of each input from the logits of all output rows, (rows, embedding rows).

        The rows are in the order of the inputs, and padded beyond the vocabulary.
        """
        self._processors.join(batch)
        self._processors.count(batch, logits.device)
        scores: list[list[Scores]] = [[] for _ in batch]
        num_logits = _CHUNK_LOGITS.get(logits.device.type, _LARGE_CHUNK_LOGITS)
        most_rows = max(1, num_logits // (self._num_blocks * BLOCK))
        for chunk in chunks_of(batch, most_rows):
            index = [row for part in chunk for row in range(part.row, part.row + part.num_rows)]
            found = self._score(logits, chunk, index)
            for part, score in zip(chunk, add_gaps(logits, chunk, found), strict=True):
                scores[part.number].append(score)
        return [joined(parts) for parts in scores]

    def forget(self, slot: KvSlot) -> None:
        """Free what is kept for a sequence, which has been closed."""
        self._processors.forget(slot)

    def _score(self, logits: Tensor, chunk: Sequence[Part], index: Sequence[int]) -> list[Scores]:
        """Return the scores of each part of a chunk, whose inputs all sample or all do not.

        A part with a fault has the scores of the rows before it.
        """
        spans = spans_of(chunk)
        rows = self._load(logits, index)
        blocks = rows.view(len(index), self._num_blocks, BLOCK)
        maxima = blocks.amax(-1)
        facts = RawFacts(rows[:, : self._vocab_size], blocks, maxima, self._scratch, chunk)
        faults = self._process(rows, blocks, maxima, chunk, spans)
        if chunk[0].item.sampling.temperature > 0:
            is_raw = not any(faults) and not any(needs_processing(part.item) for part in chunk)
            mass = facts.mass if is_raw else None
            drawn = self._sampled(blocks, maxima, chunk, mass)
            scores = [sampled_scores(drawn[span], facts.entropies[span]) for span in spans]
        else:
            scores = list(self._greedy(rows, blocks, maxima, chunk, facts))
        results = []
        for part, span, score, fault in zip(chunk, spans, scores, faults, strict=True):
            if part.item.num_logprobs is not None:
                drafts = part.drafts
                raw = logits[part.row : part.row + part.num_rows]
                score = replace(
                    score, logprobs=facts.logprobs(raw, span, score.choices, drafts, part.item.num_logprobs)
                )
            results.append(cut(score, fault))
        return results

    def _load(self, logits: Tensor, index: Sequence[int]) -> Tensor:
        """Copy rows to float32, padded to whole blocks by -inf."""
        num_rows, width = len(index), self._num_blocks * BLOCK
        if self._rows.device != logits.device or len(self._rows) < num_rows:
            slice_rows = max(1, _SLICE_LOGITS.get(logits.device.type, _LARGE_CHUNK_LOGITS) // width)
            self._rows = torch.empty(num_rows, width, device=logits.device)
            self._scratch = torch.empty(2, min(num_rows, slice_rows), width, device=logits.device)
        rows = self._rows[:num_rows]
        is_consecutive = index[-1] - index[0] == num_rows - 1
        source = logits[index[0] : index[-1] + 1] if is_consecutive else logits[list(index)]
        rows[:, : self._vocab_size].copy_(source[:, : self._vocab_size])
        if width > self._vocab_size:
            rows[:, self._vocab_size :] = -torch.inf
        return rows

    def _process(
        self,
        rows: Tensor,
        blocks: Tensor,
        maxima: Tensor,
        chunk: Sequence[Part],
        spans: Sequence[slice],
    ) -> list[Fault | None]:
        """Apply the logits processors; return the fault of each part, None where every row has a choice.

        The logits from a fault on are set to 0, so that they do not disturb the others.
        """
        raw = bad_rows(_is_finite(maxima), spans)
        faults = [None if row is None else raw_fault(part, row) for part, row in zip(chunk, raw, strict=True)]
        for i, part in enumerate(chunk):
            fault, earlier = within(part, self._processors.fault(part.item)), faults[i]
            if fault is not None and (earlier is None or fault.row <= earlier.row):
                faults[i] = fault
        changed = [
            i for i, part in enumerate(chunk) if needs_processing(part.item) and not _is_first(faults[i])
        ]
        for i in changed:
            span, part, spare = spans[i], chunk[i], self._scratch[0, :, : self._vocab_size]
            self._processors.process(blocks[span], maxima[span], part.item, part.first, spare)
        excluded = bad_rows(_is_finite(maxima), spans) if changed else raw
        for i in changed:
            row, fault = excluded[i], faults[i]
            if row is not None and (fault is None or row < fault.row):
                faults[i] = Fault(row, *blame(chunk[i].item, position(chunk[i], row)))
        for span, fault in zip(spans, faults, strict=True):
            if fault is not None:
                rows[span][fault.row :], maxima[span][fault.row :] = 0.0, 0.0
        return faults

    def _greedy(
        self, rows: Tensor, blocks: Tensor, maxima: Tensor, chunk: Sequence[Part], facts: "RawFacts"
    ) -> Iterator[Scores]:
        choices = argmax(blocks, maxima).tolist()
        for part, span in zip(chunk, spans_of(chunk), strict=True):
            excluded: tuple[bool, ...] = (False,) * part.num_rows
            if part.item.drafts and needs_processing(part.item):
                excluded = excluded_drafts(rows[span], part.drafts)
            yield Scores(tuple(choices[span]), tuple(facts.entropies[span]), excluded)

    def _sampled(
        self, blocks: Tensor, maxima: Tensor, chunk: Sequence[Part], mass: Mass | None
    ) -> list[DrawnToken]:
        """Draw the tokens of a chunk; `mass` is that of its rows at temperature 1, if it is known."""
        requests = [
            request for part in chunk for request in islice(sample_requests(part.item), part.first, part.end)
        ]
        sampling = [request.sampling for request in requests]
        candidates: Candidates
        if self._vocab_size <= _FEW_TOKENS:
            logits = blocks.flatten(1)[:, : self._vocab_size].cpu().numpy()
            ids = np.broadcast_to(np.arange(self._vocab_size), logits.shape)
            candidates = FewCandidates(ids, logits, sampling)
        else:
            needs_leading = any(request.is_rejection and request.is_proposing for request in requests)
            candidates = LogitCandidates(
                blocks, maxima, self._vocab_size, sampling, self._scratch, needs_leading, mass
            )
        return Sampler(candidates, requests).draw()


def _is_finite(maxima: Tensor) -> list[bool]:
    """Return for each row whether its largest logit is finite; NaN is larger than all."""
    found: list[bool] = maxima.amax(-1).isfinite().tolist()
    return found


def _is_first(fault: Fault | None) -> bool:
    """Return True if no row of the part has a token to choose."""
    return fault is not None and not fault.row
