"""vLLM's workers: started by its engine core, whose scheduler stays idle, and called step by step."""

import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from flyserve.core.errors import FlyServeError, ModelError, describe
from services.engine.base import ForwardInput, RunnerLost, Scores
from services.engine.vllm.steps import Layout, Step

logger = logging.getLogger(__name__)

OWN_ARGUMENTS = {
    "worker_extension_cls": "services.engine.vllm.worker.StepWorker",
    "async_scheduling": False,
    "enable_prefix_caching": False,
    "skip_tokenizer_init": True,
    "disable_log_stats": True,
}
"""Arguments that no configuration changes; all of them are reserved."""


class Workers:
    """The workers of one replica: in this process if it is one, else in processes of their own.

    Attributes:
        config: vLLM's configuration, as it has settled it for the model and the device.
        is_inside: The only worker is in this process, and so are its logits.
        batch_tokens: Most token rows of a step.
        step_timeout_s: A step that takes longer in other processes has failed; None during a start, in which
            kernels may be compiled.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Start them: load the model and create the KV memory.

        Raises:
            ModelError: vLLM refuses the model or an argument.
        """
        self._core = _start_core({**arguments, **OWN_ARGUMENTS})
        self._executor = self._core.model_executor
        self.config = self._core.vllm_config
        self.batch_tokens: int = self.config.scheduler_config.max_num_batched_tokens
        parallel = self.config.parallel_config
        self.is_inside = parallel.world_size == 1
        # Logits are those of the first rank of the last stage.
        self._rank = parallel.world_size - parallel.tensor_parallel_size
        self.step_timeout_s: float | None = None

    def prepare(self, vocab_size: int) -> Layout:
        """Check vLLM's private names in all workers, and make heads; return the layout of their KV memory.

        Raises:
            ModelError: A name is missing.
        """
        try:
            if self.config.parallel_config.pipeline_parallel_size > 1:
                # NOTE: on CPUs vLLM warms nothing up, and the later stages lack their buffers until then.
                self._executor.execute_dummy_batch()
            layouts: list[Layout] = self._executor.collective_rpc("flyserve_start", args=(vocab_size,))
        except Exception as error:
            raise ModelError(f"vLLM {_version()} cannot be driven: {describe(error)}") from error
        return min(layouts)

    def compute(self, step: Step) -> Tensor | None:
        """Compute a step; return the logits of its output rows, None if it has none.

        Raises:
            RunnerLost: A worker has ended, hangs or failed, so that the others may wait for it.
        """
        if self.is_inside:
            (logits,) = self._executor.collective_rpc("flyserve_step", args=(step, False))
            return logits  # type: ignore[no-any-return]
        return self._call("flyserve_step", step, True)  # type: ignore[no-any-return]

    def score(self, step: Step, items: Sequence[ForwardInput]) -> list[Scores] | str:
        """Compute a step and score its rows in the process that has their logits.

        Returns:
            The scores, or the error of a head that failed after the step.

        Raises:
            RunnerLost: As `compute`.
        """
        return self._call("flyserve_scores", step, items, self._rank)  # type: ignore[no-any-return]

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method in all processes; return the result of the one that has the logits."""
        try:
            return self._executor.collective_rpc(
                method, self.step_timeout_s, arguments, unique_reply_rank=self._rank
            )
        except Exception as error:
            raise RunnerLost(f"a process of vLLM has ended or hangs: {describe(error)}") from error

    def check(self) -> None:
        """Raise `RunnerLost` if a worker has ended."""
        if getattr(self._executor, "is_failed", False):
            raise RunnerLost("a process of vLLM has ended")

    def close(self) -> None:
        """End the workers; never raises."""
        try:
            self._core.shutdown()
        except Exception:
            logger.exception("vLLM's workers could not be ended")


def _start_core(arguments: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    try:
        config = EngineArgs(**arguments).create_engine_config()
        return EngineCore(config, Executor.get_class(config), log_stats=False)
    except FlyServeError:
        raise
    except Exception as error:  # vLLM and its libraries raise many types here
        raise ModelError(f"vLLM rejects {arguments['model']}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return one line: a validation error of pydantic has its reason behind the first one."""
    reasons = getattr(error, "errors", None)
    if callable(reasons) and (found := reasons()):
        return "; ".join(str(each.get("msg", each)) for each in found)
    return describe(error)


def _version() -> str:
    import vllm

    return str(vllm.__version__)
