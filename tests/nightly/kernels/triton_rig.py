"""Triton's kernels in a process of their own: interpreted on the CPU, or compiled without a GPU.

Triton reads TRITON_INTERPRET when it is imported, so no process of pytest itself imports it.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fly.errors import ModelError
from gpu_kernels import checks
from services.engine.base import ForwardInput, Scores
from tests.support.processes import ROOT

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None,
    reason="Triton is not here: `pip install .[triton]` installs it on x86-64 Linux",
)


class TritonProcess:
    """Calls functions of this module in another process."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore::RuntimeWarning", "-m", __name__],
            env={**os.environ, **environment},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the function returns; raise what it raises."""
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump((name, args, kwargs), self._process.stdin)
        self._process.stdin.flush()
        result, error = pickle.load(self._process.stdout)
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def row_facts(logits: Tensor, vocab_size: int, rows: Tensor | None = None) -> Tensor:
    from gpu_kernels.row_facts import row_facts

    return row_facts(logits, vocab_size, rows)


def paged_attention(*args: Any, **kwargs: Any) -> Tensor:
    from gpu_kernels.paged_attention import paged_attention

    return paged_attention(*args, **kwargs)


def tile_sizes(dim_bytes: int) -> tuple[int, int]:
    """Return the positions that a tile of attention reads at once, and its largest number of queries."""
    from gpu_kernels.paged_attention import tile_positions, tile_queries

    return tile_positions(dim_bytes), tile_queries(4096, 1, 4, dim_bytes)


def score(vocab_size: int, logits: Tensor, batch: Sequence[ForwardInput]) -> tuple[list[Scores], int]:
    """Return the scores of a head with the kernel, and the number of rows that the kernel computed."""
    from gpu_kernels import head

    num_rows = 0

    def counting(logits: Tensor, vocab_size: int, rows: Tensor | None = None) -> Tensor:
        nonlocal num_rows
        facts = row_facts(logits, vocab_size, rows)
        num_rows += len(facts)
        return facts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "checked_row_facts", lambda device: counting)  # the checks take most of the time
        return head.KernelHead(vocab_size)(logits, batch), num_rows


def check(error: float = 0.0) -> list[str]:
    """Return the faults that the checks find on a CPU, with an error added to the kernels' results."""
    from gpu_kernels import paged_attention, row_facts

    device, facts, attend = torch.device("cpu"), row_facts.row_facts, paged_attention.paged_attention
    kinds = checks.AttentionKind(4, 1, 16), checks.AttentionKind(2, 1, 24, True, 5.0, True)
    faults = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_facts, "row_facts", lambda *args: facts(*args) + error)
        patch.setattr(paged_attention, "paged_attention", lambda *args, **each: attend(*args, **each) + error)
        loads = [partial(checks.checked_paged_attention, device, torch.float32, kind) for kind in kinds]
        for load in (partial(checks.checked_row_facts, device), *loads):
            try:
                load()
            except ModelError as fault:
                faults.append(str(fault))
    checks.checked_row_facts.cache_clear()
    checks.checked_paged_attention.cache_clear()
    return faults


@torch.inference_mode()
def model_logits(folder: Path, is_fused: bool, turns: Sequence[Sequence[ForwardInput]]) -> list[Tensor]:
    """Return the logits of several forwards of a model, whose attention is that of the kernel."""
    from gpu_kernels import attention
    from gpu_kernels.paged_attention import paged_attention as kernel
    from services.engine.forward.attention import RaggedForward
    from services.engine.forward.forward_batch import ForwardBatch
    from services.engine.forward.fused import FusedForward
    from services.engine.forward.linears import PlainLinear
    from services.engine.loading.model import load_model
    from services.engine.memory.paged_kv_cache import PagedKvCache

    model: Any = load_model(folder, "float32").model
    kv_cache, attend = PagedKvCache(1024, 8), attention.KernelAttention
    forward = (
        FusedForward(model, kv_cache, PlainLinear, make_attention=attend)
        if is_fused
        else RaggedForward(model, kv_cache, attend)
    )
    for item in sorted(turns[-1], key=lambda item: item.slot):
        assert kv_cache.allocate(len(item.history)) == item.slot
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "checked_paged_attention", lambda *kind: kernel)  # as in `score`
        return [forward(ForwardBatch(turn)) for turn in turns]


def compiled(
    module: str,
    kernel: str,
    types: dict[str, str],
    constants: dict[str, Any],
    capability: int,
    **options: int,
) -> tuple[int, str]:
    """Compile a kernel for a GPU of some compute capability; return its shared memory in bytes, and its PTX.

    Pointers are aligned, and the strides among the `types` are round, as those of real tensors are.
    """
    from importlib import import_module

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(import_module(f"gpu_kernels.{module}"), kernel)
    is_round = [
        (function.arg_names.index(name),)
        for name, kind in types.items()
        if kind.startswith("*") or name.endswith(("stride", "width"))
    ]
    source = ASTSource(
        fn=function,
        signature={**types, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={place: [["tt.divisibility", 16]] for place in is_round},
    )
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert found.asm["cubin"]
    return found.metadata.shared, found.asm["ptx"]


def _multiply_bfloat16() -> None:
    """Let the interpreter multiply matrices of bfloat16, which it takes for integers."""
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def widened(builder: Any, matrix: Any) -> Any:
        is_bfloat16 = matrix.dtype.scalar == tl.bfloat16
        return builder.cast_impl(matrix, tl.float32) if is_bfloat16 else matrix

    def create_dot(builder: Any, left: Any, right: Any, *args: Any) -> Any:
        return multiply(builder, widened(builder, left), widened(builder, right), *args)

    InterpreterBuilder.create_dot = create_dot


def _serve() -> None:
    """Call a function for each request on standard input, until it ends."""
    output, sys.stdout = sys.stdout.buffer, sys.stderr
    torch.set_num_threads(1)
    if os.environ.get("TRITON_INTERPRET") == "1":
        _multiply_bfloat16()
    while True:
        try:
            name, args, kwargs = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        reply: tuple[Any, Exception | None]
        try:
            reply = globals()[name](*args, **kwargs), None
        except Exception as error:
            reply = None, RuntimeError(repr(error))
        pickle.dump(reply, output)
        output.flush()


if __name__ == "__main__":
    _serve()
