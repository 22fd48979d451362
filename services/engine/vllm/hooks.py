"""Private names of vLLM: everything that the steps touch inside its two model runners, and their check."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from services.engine.vllm.steps import Row

Ids = NDArray[np.int32]

_PLANS: Mapping[str, tuple[str, ...]] = {
    "NewRequestData": (
        *("req_id", "prompt_token_ids", "prefill_token_ids", "mm_features", "sampling_params"),
        *("pooling_params", "block_ids", "num_computed_tokens", "lora_request"),
    ),
    "CachedRequestData": (
        *("req_ids", "resumed_req_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens"),
    ),
    "SchedulerOutput": (
        *("scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "finished_req_ids"),
        *("total_num_scheduled_tokens", "kv_cache_block_copies"),
    ),
}
"""Fields of vLLM's plans."""
_RUNNER = ("execute_model_state", "model.compute_logits", "kv_cache_config.kv_cache_groups")
_STATE = "hidden_states"


class Hooks(Protocol):
    """Access to one of vLLM's model runners.

    Attributes:
        names: Names of the model runner that it needs beside those of every one.
        state_fields: Fields of the runner's `ExecuteModelState` that it needs.
    """

    names: ClassVar[tuple[str, ...]]
    state_fields: ClassVar[tuple[str, ...]]

    def token_ids(self, ids: Ids) -> Any:
        """Return the token ids of a sequence that the runner learns, in the form that it wants."""

    def write(self, row: Row, ids: Ids) -> None:
        """Write the tokens of a row, of a sequence that the runner knows; `ids` ends with them."""

    def replaces(self, name: str, blocks: tuple[list[int], ...]) -> bool:
        """Replace all blocks of a known sequence; return False if the plan must do it."""

    def flush(self, has_new: bool) -> None:
        """Finish the writes of a step, whose plan has new sequences or not."""

    def names_in_order(self, state: Any) -> Sequence[str]:
        """Return the sequences of the step that has just been computed, in the order of its rows."""


class HooksV1:
    """`vllm/v1/worker/gpu_model_runner.py`, which vLLM uses on CPUs."""

    names: ClassVar[tuple[str, ...]] = (
        *("requests", "input_batch.req_ids", "input_batch.req_id_to_index", "input_batch.token_ids_cpu"),
        *("input_batch.num_tokens_no_spec", "input_batch.num_prompt_tokens"),
    )
    state_fields: ClassVar[tuple[str, ...]] = (_STATE,)

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def token_ids(self, ids: Ids) -> Any:
        return ids

    def write(self, row: Row, ids: Ids) -> None:
        request, batch, end = self._runner.requests[row.name], self._runner.input_batch, len(ids)
        request.prompt_token_ids, request.num_prompt_tokens = ids, end
        index = batch.req_id_to_index.get(row.name)
        if index is not None:
            batch.token_ids_cpu[index, row.start : end] = row.tokens
            batch.num_tokens_no_spec[index] = batch.num_prompt_tokens[index] = end

    def replaces(self, name: str, blocks: tuple[list[int], ...]) -> bool:
        return False

    def flush(self, has_new: bool) -> None:
        return

    def names_in_order(self, state: Any) -> Sequence[str]:
        names: Sequence[str] = self._runner.input_batch.req_ids
        return names


class HooksV2:
    """`vllm/v1/worker/gpu/model_runner.py`, which vLLM uses on GPUs."""

    names: ClassVar[tuple[str, ...]] = (
        *("req_states.req_id_to_index", "req_states.all_token_ids.stage_write", "req_states.prompt_len.np"),
        *("req_states.prefill_len.np", "req_states.num_computed_tokens.stage_write_elem"),
        *("req_states.apply_staged_writes", "block_tables.append_block_ids"),
    )
    state_fields: ClassVar[tuple[str, ...]] = (_STATE, "input_batch")

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def token_ids(self, ids: Ids) -> Any:
        return ids.tolist()

    def write(self, row: Row, ids: Ids) -> None:
        states = self._runner.req_states
        index = states.req_id_to_index[row.name]
        states.all_token_ids.stage_write(index, row.start, list(row.tokens))
        states.prompt_len.np[index] = states.prefill_len.np[index] = len(ids)
        states.num_computed_tokens.stage_write_elem(index, row.start)

    def replaces(self, name: str, blocks: tuple[list[int], ...]) -> bool:
        index = self._runner.req_states.req_id_to_index[name]
        self._runner.block_tables.append_block_ids(index, blocks, overwrite=True)
        return True

    def flush(self, has_new: bool) -> None:
        # NOTE: once per step, as vLLM does it for new sequences: it has two buffers, which it uses in turn.
        if not has_new:
            self._runner.req_states.apply_staged_writes()

    def names_in_order(self, state: Any) -> Sequence[str]:
        names: Sequence[str] = state.input_batch.req_ids
        return names


def hooks_of(worker: Any) -> Hooks:
    """Return the access to a worker's model runner; its model is loaded and its KV memory created.

    Raises:
        RuntimeError: A name is missing, or a setting of vLLM would compute something else.
    """
    hooks = (HooksV2 if worker.use_v2_model_runner else HooksV1)(worker.model_runner)
    if missing := [*_missing(worker.model_runner, hooks), *_settings(worker.vllm_config)]:
        raise RuntimeError(f"this vLLM has no {', '.join(missing)}")
    return hooks


def _missing(runner: Any, hooks: Hooks) -> Iterator[str]:
    """Yield the names that this vLLM lacks."""
    import vllm.v1.core.sched.output as plans

    for name in (*_RUNNER, *hooks.names):
        if not _has(runner, name):
            yield name
    for plan, fields in _PLANS.items():
        found = getattr(getattr(plans, plan, None), "__dataclass_fields__", ())
        yield from (f"{plan}.{field}" for field in fields if field not in found)
    module = next(kind.__module__ for kind in type(runner).__mro__ if kind.__name__ == "GPUModelRunner")
    found = getattr(getattr(sys.modules[module], "ExecuteModelState", None), "_fields", ())
    yield from (f"ExecuteModelState.{field}" for field in hooks.state_fields if field not in found)


def _settings(config: Any) -> Iterator[str]:
    """Yield what steps need and a setting of vLLM takes away."""
    if config.scheduler_config.async_scheduling:
        yield "way to wait for every step (async_scheduling is on)"


def _has(owner: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True
