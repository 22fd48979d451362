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
from services.engine.llamacpp.cells import Cells, OrderedCells
from services.engine.llamacpp.runner import LlamaCppRunner

_CELLS = 256
"""The library rounds the cells of a context up to a multiple of this number."""
_MOST_ROWS = 512
"""Rows that the library computes at once; a larger batch is divided."""
_FEW_ROWS = 7
"""The same for weights of which 8 and more rows have other bits than fewer: llama.cpp has two kernels."""
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
        runner = self._runner(min(self.num_rows, _MOST_ROWS))
        if self.config.deterministic:
            alone, *several = _first_rows(runner)
            runner.is_paired = not torch.equal(alone, several[0])
            if not all(torch.equal(row, several[0]) for row in several):
                del runner  # and its memory
                runner = self._runner(_FEW_ROWS)
        return runner

    def _runner(self, rows_at_once: int) -> LlamaCppRunner:
        capacity, own, spare, cells = self.info.kv_capacity, 0, 0, Cells
        if self.config.deterministic:
            own, spare, cells = _OWN_SEQUENCES, max(_LEAST_SPARE, capacity // _SPARE_SHARE), OrderedCells
        most_slots = min(libllama.MOST_SEQUENCES - own, 2 * self.config.max_sequences)
        context = self._context(capacity + spare, most_slots + own, rows_at_once)
        held = cells(self.library, context, most_slots + 1, spare)
        runner = LlamaCppRunner(self.info, context, held, self.num_rows, self.embedding_rows, most_slots)
        weakref.finalize(runner, self._free, context).atexit = False
        return runner

    def _free(self, context: int) -> None:
        self.library.llama_free(context)

    def _context(self, num_cells: int, num_sequences: int, rows_at_once: int) -> int:
        """Return a context of the model, whose sequences share all cells.

        NOTE: with values of another type than the keys, attention has one kernel for any number of rows and
        of cells; it does not divide cells among threads, and it adds in 32 bits.
        """
        config, library = self.config, self.library
        asked = {
            "n_ctx": -(-num_cells // _CELLS) * _CELLS,
            "n_batch": self.num_rows + config.deterministic,
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
