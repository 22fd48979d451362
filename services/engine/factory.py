"""Build an engine from its configuration; torch is imported only for a real model."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from flyserve.core.clock import Clock, SystemClock
from flyserve.core.messages import VERIFIED_TOKENS, ForwardCosts
from services.common.model_source import model_folder
from services.engine.base import Keepalive, Runner, Scorer
from services.engine.config import (
    AUTO,
    LlamaCppConfig,
    ModelConfig,
    ReplicaConfig,
    StartFollowers,
    VllmConfig,
)
from services.engine.engine import Engine
from services.engine.grammars import EngineGrammars
from services.engine.loading.light_start import light_start
from services.engine.loading.torch_environment import set_environment
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedRunner
from services.engine.thread_engine import ThreadEngine

logger = logging.getLogger(__name__)
C = TypeVar("C", bound=ReplicaConfig)
EngineConfig = ModelConfig | VllmConfig | LlamaCppConfig
"""Configuration of a model, by its runner."""


def build_engine(
    config: EngineConfig, clock: Clock | None = None, start_followers: StartFollowers | None = None
) -> Engine:
    """Return an engine, loaded but not started.

    `clock` is that of a simulated model, the system's by default; `start_followers` starts the followers of a
    shared model, which this process leads.

    Raises:
        ConfigError: An argument of vLLM cannot be used.
        ModelError: The model cannot be served.
    """
    if isinstance(config, ModelConfig) and config.simulated is not None:
        simulated = SimulatedRunner(
            config.simulated, config.role, config.max_sequences, config.fixed_kv_tokens
        )
        return ClockEngine(simulated, clock or SystemClock(), config)
    set_environment(config.device)
    return _engine(config, start_followers)


def _load(config: EngineConfig, start_followers: StartFollowers | None) -> tuple[Runner, Keepalive | None]:
    """Load a model into the runner of its configuration, with the keepalive that the runner needs."""
    if isinstance(config, LlamaCppConfig):
        from services.engine.llamacpp.start import load_gguf_runner

        return load_gguf_runner(config), None
    if isinstance(config, VllmConfig):
        from services.engine.vllm.start import load_vllm_runner

        runner = load_vllm_runner(config)
        return runner, runner
    if config.sharding is not None:
        assert start_followers is not None, "a shared model has followers"
        with light_start(is_whole=False):
            from services.engine.sharding.leader import lead

            leader = lead(config, start_followers)
        return leader, leader
    with light_start(is_whole=True):
        from services.engine.forward.torch_runner import load_runner

        return load_runner(config), None


def _engine(config: EngineConfig, start_followers: StartFollowers | None) -> Engine:
    """Return the engine of a model, which reports its measured costs."""
    from services.engine.head.head_scorer import HeadScorer

    runner, keepalive = _load(config, start_followers)
    scorer, most = HeadScorer(runner), config.num_threads
    config, costs = _measured(config, scorer)
    if config.num_threads < most and runner.info.row_invariant:
        # NOTE: a sum may be divided among threads: the kernels are proven for their number.
        del runner, keepalive, scorer
        runner, keepalive = _load(config, start_followers)
        scorer = HeadScorer(runner)
    scorer.info = replace(scorer.info, costs=costs)
    assert config.model is not None
    grammars = EngineGrammars(model_folder(config.model), scorer.info.vocab_size)
    return ThreadEngine(scorer, config, keepalive, _thread_setting(config), grammars)


def _thread_setting(config: ReplicaConfig, threads: int | None = None) -> Callable[[], object]:
    """Return a function that gives the thread that calls it the CPU threads of this engine.

    NOTE: torch counts them per thread; a new one takes the number that was set last, perhaps by another
    engine of the process. It does so at its first use of the number, hence the reading before the setting.
    """
    import torch

    def set_threads() -> None:
        torch.get_num_threads()
        torch.set_num_threads(threads or config.num_threads)

    return set_threads


def _measured(config: C, scorer: Scorer) -> tuple[C, ForwardCosts | None]:
    """Return the configuration with the fastest number of threads, if it is to be chosen, and the costs.

    It is not chosen for a GPU, where times differ by chance, nor for vLLM, which takes its number when it
    starts.
    """
    is_chosen = config.threads == AUTO and config.device == "cpu" and config.num_processes == 1
    if not is_chosen or isinstance(config, VllmConfig) or scorer.kv_capacity < VERIFIED_TOKENS:
        return config, _costs(scorer)
    from services.engine.loading.forward_costs import measure_costs
    from services.engine.loading.threads import fastest_threads

    def measure(threads: int) -> ForwardCosts:
        _thread_setting(config, threads)()
        return measure_costs(scorer)

    threads, costs = fastest_threads(config.num_threads, measure)
    logger.info("%s: threads is auto: %d of at most %d", config.model, threads, config.num_threads)
    return config.model_copy(update={"threads": threads}), costs


def _costs(scorer: Scorer) -> ForwardCosts | None:
    """Return the durations of the model's forwards; None if its KV memory has no room to measure them."""
    from services.engine.loading.forward_costs import measure_costs

    if scorer.kv_capacity < VERIFIED_TOKENS:
        return None
    return measure_costs(scorer)
