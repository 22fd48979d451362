"""Open a context of a model, in which rows have the same bits in any company if `deterministic` is set."""

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from flyserve.core.errors import ModelError
from flyserve.core.messages import ModelInfo
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.config import LlamaCppConfig
from services.engine.llamacpp import library as libllama
from services.engine.llamacpp.cells import Cells, OrderedCells, TwinCells
from services.engine.llamacpp.runner import LlamaCppRunner

_CELLS = 256
"""The library rounds the cells of a context up to a multiple of this number."""
_FEW_ROWS = 7
"""Rows at once for weights of which 8 and more have other bits than fewer: llama.cpp has two kernels."""
_COMPARED_ROWS = (1, 2, 7, 8, 16)
_SPARE_SHARE, _LEAST_SPARE = 16, 256
"""Cells beside the KV positions with `deterministic`: one per this many positions, and the least number."""
DETERMINISTIC_COPIES = 2 + 1 / _SPARE_SHARE
"""Memory of a KV position with `deterministic`, in its bytes: a cell, a part of a spare one, a saved copy."""
_OWN_SEQUENCES = 2
"""Sequences beside those of the slots with `deterministic`: of paired rows, and the holder of all cells."""
_BFLOAT16, _FLASH = 30, 1
"""Numbers of a type and of the attention in libllama."""


@dataclass(frozen=True)
class Opener:
    """Opens contexts of a model for runners.

    Attributes:
        num_rows: Most rows that a runner gives to the library at once.
        embedding_rows: Size of the logits of a row.
    """

    library: Any
    model: int
    config: LlamaCppConfig
    info: ModelInfo
    num_rows: int
    embedding_rows: int

    def open(self) -> LlamaCppRunner:
        """Return a runner; the model is freed after it.

        With `deterministic` its rows are compared for several numbers of them, which decides how many are
        computed at once.
        """
        weakref.finalize(self, self.library.llama_model_free, self.model).atexit = False
        runner = self._runner(self.num_rows)
        if self.config.deterministic:
            alone, *several = _first_rows(runner)
            runner.is_paired = not torch.equal(alone, several[0])
            if not all(torch.equal(row, several[0]) for row in several):
                del runner  # and its memory
                runner = self._runner(_FEW_ROWS)
        return runner

    def _runner(self, rows_at_once: int) -> LlamaCppRunner:
        """Return a runner.

        Raises:
            ModelError: The sequences are too many, or there is no such context.
        """
        config, capacity = self.config, self.info.kv_capacity
        cells: type[Cells] = Cells
        each, own, spare, reason = 1, 0, 0, ""
        if config.deterministic:
            cells, own, reason = OrderedCells, _OWN_SEQUENCES, "with deterministic: true"
            spare = max(_LEAST_SPARE, capacity // _SPARE_SHARE)
        elif self.library.llama_model_n_swa(self.model):
            cells, each, reason = TwinCells, 2, "for a model whose attention has a window"
        most_slots = (libllama.MOST_SEQUENCES - own) // each
        if config.max_sequences > most_slots:
            raise ModelError(f"max_sequences: is {config.max_sequences}, at most {most_slots} {reason}")
        most_slots = min(most_slots, 2 * config.max_sequences)
        num_sequences = each * most_slots + own
        context = self._context(capacity + spare, num_sequences, rows_at_once)
        held = cells(self.library, context, num_sequences - 1, spare)
        runner = LlamaCppRunner(self.info, context, held, self.num_rows, self.embedding_rows, most_slots)
        weakref.finalize(runner, self._free, context).atexit = False
        return runner

    def _free(self, context: int) -> None:
        self.library.llama_free(context)

    def _context(self, num_cells: int, num_sequences: int, rows_at_once: int) -> int:
        """Return a context of the model, whose sequences share all cells.

        NOTE: the library ends the process if the rows of a batch are fewer than the sequences.

        NOTE: with values of another type than the keys, attention has one kernel for any number of rows and
        of cells; it does not divide cells among threads, and it adds in 32 bits.
        """
        config, library = self.config, self.library
        asked = {
            "n_ctx": -(-num_cells // _CELLS) * _CELLS,
            "n_batch": max(self.num_rows + config.deterministic, num_sequences),
            "n_ubatch": rows_at_once + (config.deterministic and rows_at_once > _FEW_ROWS),
            "n_seq_max": num_sequences,
            "n_threads": config.num_threads,
        }
        others = {"n_threads_batch": config.num_threads, "kv_unified": True}
        if config.deterministic:
            others |= {"type_v": _BFLOAT16, "flash_attn_type": _FLASH}
        params = library.llama_context_default_params()
        for name, value in (asked | others).items():
            setattr(params, name, value)
        with libllama.explained() as lines:
            context: int | None = library.llama_init_from_model(self.model, params)
        if not context:
            way = " with deterministic: true (set it to false)" if config.deterministic else ""
            reason = libllama.reason(lines)
            raise ModelError(f"{config.model}: no context of {num_cells} KV cells{way}: {reason}")
        for name, value in asked.items():
            if (found := getattr(library, f"llama_{name}")(ctypes.c_void_p(context))) < value:
                raise ModelError(f"{libllama.PACKAGE} made a context with {name} {found} instead of {value}")
        if not library.llama_get_causal_attn(context):
            raise ModelError(f"{config.model}: only causal language models are supported")
        return context


def _first_rows(runner: LlamaCppRunner) -> list[torch.Tensor]:
    """Return the logits of the same first row beside several numbers of others."""
    rows = []
    for count in _COMPARED_ROWS:
        slot = runner.allocate(count)
        assert slot is not None, "nothing is allocated yet"
        item = ForwardInput(slot, 0, range(count), count, SamplingParams(), 0, range(count))
        rows.append(runner.logits([item])[0].clone())
        runner.free(slot)
    return rows
