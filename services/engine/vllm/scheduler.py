"""vLLM's scheduler with additions; vLLM imports this module in its engine process, and nobody else does.

The prefix cache must not serve rows whose scores a request wants: they would hold uninitialised memory. Here
it serves only the tokens before them, and only wanted rows are sent to the front end. The engine process ends
with the process that started it, even if that one is killed.
"""

import ctypes
import os
import signal
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from services.engine.vllm.rows import ROWS_KEY

_PR_SET_PDEATHSIG = 1


def create_scheduler(vllm_config: Any, **kwargs: Any) -> Any:
    """Return a scheduler of the kind that vLLM would take; called in the engine process, once."""
    end_with_parent()
    is_async = vllm_config.scheduler_config.async_scheduling
    return (AsyncScoringScheduler if is_async else ScoringScheduler)(vllm_config=vllm_config, **kwargs)


class _ScoresRows:
    """Limits what the prefix cache serves to a scoring request; a mixin of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        coordinator = self.kv_cache_manager.coordinator  # type: ignore[attr-defined]
        self._find = coordinator.find_longest_cache_hit
        self._limit: int | None = None
        coordinator.find_longest_cache_hit = self._find_within_limit

    def _get_local_prefix_cache_hit(self, request: Any) -> Any:
        num_rows = _num_rows(request)
        # Row i scores token i + 1. The last token of a prompt has a row too, which is always computed.
        self._limit = request.num_prompt_tokens - 1 - num_rows if num_rows else None
        return super()._get_local_prefix_cache_hit(request)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Pass only wanted rows on to the front end."""
        found = model_runner_output.prompt_logprobs_dict
        for name, tensors in found.items():
            request = self.requests.get(name)  # type: ignore[attr-defined]
            if tensors is not None and request is not None and (num_rows := _num_rows(request)):
                found[name] = tensors._replace(
                    logprob_token_ids=tensors.logprob_token_ids[-num_rows:],
                    logprobs=tensors.logprobs[-num_rows:],
                    selected_token_ranks=tensors.selected_token_ranks[-num_rows:],
                )
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _find_within_limit(self, block_hashes: Any, max_cache_hit_length: int) -> Any:
        limit = max_cache_hit_length if self._limit is None else self._limit
        return self._find(block_hashes, min(limit, max_cache_hit_length))


def _num_rows(request: Any) -> int:
    """Return the number of rows at the end of a prompt whose scores are wanted."""
    params = request.sampling_params
    return ((params.extra_args or {}).get(ROWS_KEY) or 0) if params is not None else 0


class ScoringScheduler(_ScoresRows, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler that scores rows."""


class AsyncScoringScheduler(_ScoresRows, AsyncScheduler):  # type: ignore[misc]
    """vLLM's scheduler that prepares a forward during the previous one, and scores rows."""


def end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends, however that happens."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended meanwhile
        os.kill(os.getpid(), signal.SIGKILL)
