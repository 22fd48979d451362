"""Start a runner of vLLM: its workers, the facts of the model, and the check of its steps."""

import logging
import os
from dataclasses import replace

import torch

from flyserve.core.errors import ModelError
from flyserve.core.messages import Role
from services.common.model_source import model_folder
from services.engine.config import Shards, VllmConfig
from services.engine.loading.steps_check import check_steps
from services.engine.vllm.library import load_library
from services.engine.vllm.model import describe_model
from services.engine.vllm.runner import VllmRunner
from services.engine.vllm.workers import Workers
from services.engine.vllm_args import engine_arguments, environment

logger = logging.getLogger(__name__)


def load_vllm_runner(config: VllmConfig) -> VllmRunner:
    """Load a model into vLLM's workers, and check that they compute steps as one prefill.

    Raises:
        ConfigError: An argument is unknown, or FlyServe sets it.
        ModelError: vLLM is missing or lacks a name, it refuses the model or an argument, or its rows differ.
    """
    known = load_library(config.device, environment(config, os.environ))
    torch.set_num_threads(config.num_threads)
    folder = model_folder(config.model)
    workers = Workers(engine_arguments(config, folder, known))
    try:
        info = describe_model(config, folder, workers.config)
        layout = workers.prepare(info.vocab_size)
        if layout.plain_only and config.role is Role.DRAFTER:
            raise ModelError(f"{info.model_id} cannot draft: {layout.plain_only}: use another drafter")
        runner = VllmRunner(info, workers, layout, workers.batch_tokens)
        checked = check_steps(runner)
        if config.deterministic and not checked.is_invariant:
            raise ModelError(
                f"deterministic: is true, but rows of {info.model_id} in steps differ from a prefill's:"
                " set it to false, or use a model and a GPU for which vLLM has this mode"
            )
        runner.info = replace(
            runner.info, kernels=checked.kernels, row_invariant=config.deterministic and checked.is_invariant
        )
        workers.step_timeout_s = (config if isinstance(config, Shards) else Shards()).group_timeout_s
    except BaseException:
        workers.close()
        raise
    logger.info(
        "%s: vLLM %s, %d KV positions, row_invariant: %s",
        info.model_id,
        info.engine_version,
        runner.kv_capacity,
        str(runner.info.row_invariant).lower(),
    )
    return runner
