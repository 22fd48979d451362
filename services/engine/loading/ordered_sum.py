"""Sums over the ranks of a shared model in the order of the ranks: a row has the same bits in any batch.

An all-reduce divides a tensor among more than two ranks, which add in different orders. So the order of the
terms of a row depends on the number of rows. A style of transformers that sums and is not here is found by
the check of rows at load.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.distributed.tensor_parallel import AllReduceParallel, MoeExpertsParallel, RowwiseParallel


def sum_in_order(part: Tensor, group: Any = None) -> Tensor:
    """Return the sum of all ranks' parts, which are shaped alike; `part` may be changed."""
    if (size := dist.get_world_size(group)) <= 2:
        dist.all_reduce(part, group=group)
        return part
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(size)]
    dist.all_gather(parts, part.contiguous(), group=group)
    total = parts[0]
    for other in parts[1:]:
        total += other
    return total


class _OrderedRowwise(RowwiseParallel):
    """Linears whose inputs are divided among the ranks."""

    def transform_output_post_forward(self, module: nn.Module, output: Tensor, mesh: Any) -> Tensor:
        total, bias = _total(output, mesh), module._parameters.get("bias")
        if bias is None or isinstance(output, DTensor):  # which has it already
            return total
        return total + (bias.to_local() if isinstance(bias, DTensor) else bias)


class _OrderedExperts(MoeExpertsParallel):
    """Experts of a mixture, each of which is divided among the ranks."""

    def transform_output_post_forward(self, module: nn.Module, output: Tensor, mesh: Any) -> Tensor:
        return _total(output, mesh)


class _OrderedAllReduce(AllReduceParallel):
    """Modules whose whole output is a part of a sum."""

    def transform_output_post_forward(self, module: nn.Module, output: Tensor, mesh: Any) -> Tensor:
        return _total(output, mesh)


def _total(output: Tensor, mesh: Any) -> Tensor:
    """Return the sum of all ranks' outputs; one that is no part of a sum is only gathered."""
    if isinstance(output, DTensor):
        if output.placements != (Partial(),):
            return output.redistribute(placements=[Replicate()]).to_local()
        output = output.to_local()
    return sum_in_order(output, mesh.get_group())


def use_ordered_sums() -> None:
    """Let transformers divide models in these ways; called before a model is loaded."""
    styles: Any = ALL_PARALLEL_STYLES
    styles.register("rowwise", _OrderedRowwise())
    for name in ("rowwise_split_input", "rowwise_rep"):
        styles.register(name, _OrderedRowwise(input_layouts=Replicate()))
    styles.register("moe_tp_experts", _OrderedExperts())
    styles.register("all_reduce", _OrderedAllReduce())
