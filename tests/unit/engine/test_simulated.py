"""The simulated model: deterministic, with the configured agreement, on a virtual clock, without torch."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flyserve.core.messages import Open, Role
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceUpdate
from flyserve.core.types import Coupling, EntropyEstimator
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner

CONFIG = SimulatedConfig(vocab_size=512, context_length=4096, response_tokens=(20, 40))


def scored(config: SimulatedConfig, ids: list[int], outputs: int, **kwargs: Any) -> Any:
    runner = SimulatedRunner(config, Role.TARGET, 1, 8192)
    slot = runner.allocate(len(ids))
    assert slot is not None
    sequence = EngineSequence(Open("r", **{"prompt_length": 4, **kwargs}), slot, 512, 4096, 8192)
    sequence.tokens.extend(ids)
    return runner.forward([next(sequence.score(outputs))])[0]


def test_scores_depend_on_position_and_recent_tokens_only() -> None:
    ids = [20 + index % 50 for index in range(100)]
    many = scored(CONFIG, ids, 30)
    singles = [scored(CONFIG, ids[: 71 + index], 1) for index in range(30)]
    assert many.choices == tuple(single.choices[0] for single in singles)
    assert many.entropies == tuple(single.entropies[0] for single in singles)


@pytest.mark.parametrize("agreement", [0.0, 0.6, 0.9, 1.0])
def test_a_drafter_agrees_as_often_as_configured(agreement: float) -> None:
    ids = [(index * 7919) % 400 + 20 for index in range(3000)]
    forever = SamplingParams(ignore_eos=True)
    target = scored(CONFIG, ids, 3000, sampling=forever).choices
    drafter = scored(replace(CONFIG, agreement=agreement), ids, 3000, sampling=forever).choices
    share = sum(map(int.__eq__, target, drafter)) / 3000
    assert abs(share - agreement) < 0.03


def test_entropies_are_bimodal_and_in_the_requested_unit() -> None:
    ids = [(index * 7919) % 400 + 20 for index in range(2000)]
    nats = scored(CONFIG, ids, 2000).entropies
    uncertain = [value for value in nats if value >= 0.6]
    assert abs(len(uncertain) / 2000 - CONFIG.uncertain_share) < 0.03
    assert all(value < 0.05 or 0.6 <= value <= 1.1 for value in nats)
    normalized = scored(CONFIG, ids, 2000, entropy=EntropyEstimator.NORMALIZED).entropies
    assert normalized[0] == pytest.approx(nats[0] / math.log(512))


def response(drive: Callable[..., Any], sampling: SamplingParams, limit: int = 100) -> list[int]:
    runner = SimulatedRunner(CONFIG, Role.TARGET, 1, 8192)
    sequence = EngineSequence(Open("r", 3, sampling), runner.allocate(200) or 0, 512, 4096, 64)
    sequence.apply(SequenceUpdate(1, 0, (20, 21, 22), 3, 0))
    tokens: list[int] = []
    while len(tokens) < limit and CONFIG.end_id not in tokens:
        tokens.append(drive(runner, sequence.score()).choices[0])
        sequence.extend(tokens[-1:])
    return tokens


def test_responses_end_where_sampling_allows(drive: Callable[..., Any]) -> None:
    stops = (CONFIG.end_id,)
    plain = response(drive, SamplingParams(stop_token_ids=stops))
    assert 20 <= len(plain) - 1 <= 40 and plain[-1] == CONFIG.end_id
    longer = response(drive, SamplingParams(stop_token_ids=stops, min_tokens=60))
    assert len(longer) == 61 and longer[:20] == plain[:20]
    assert len(response(drive, SamplingParams(stop_token_ids=stops, ignore_eos=True))) == 100


def test_a_stop_before_min_tokens_is_excluded() -> None:
    sampling = SamplingParams(stop_token_ids=(2,), min_tokens=3)
    scores = scored(CONFIG, [20, 21, 22, 23, 2, 30, 31, 2], 5, sampling=sampling)
    assert scores.excluded == (True, False, False, False, False)


@pytest.mark.parametrize("coupling", Coupling)
def test_sampled_tokens_vary_by_seed_and_follow_the_distribution(coupling: Coupling) -> None:
    config = replace(CONFIG, vocab_size=16, first_word=3, uncertain_share=1.0)
    ids, logprobs, drawn = [3, 4, 5, 6, 7], {}, Counter[int]()
    for seed in range(400):
        sampling = SamplingParams(temperature=1.0, seed=seed, coupling=coupling)
        scores = scored(config, ids, 1, sampling=sampling, num_logprobs=20)
        drawn[scores.choices[0]] += 1
        logprobs = dict(scores.logprobs[0].top)
    assert sum(math.exp(value) for value in logprobs.values()) == pytest.approx(1.0, abs=1e-5)
    for token, value in logprobs.items():
        assert drawn[token] / 400 == pytest.approx(math.exp(value), abs=0.09)
    assert len(drawn) > 3


def test_gaps_are_differences_of_log_probabilities() -> None:
    config, ids = replace(CONFIG, uncertain_share=1.0), [(index * 7919) % 400 + 20 for index in range(100)]
    ids[80] = scored(config, ids[:80], 1).choices[0]
    scores = scored(config, ids, 21, num_logprobs=0, with_gaps=True)
    expected = [each.choice - each.draft for each in scores.logprobs[:-1]]
    assert scores.gaps == (*expected, 0.0) and scores.gaps[0] == 0.0 < max(scores.gaps)
    assert scored(config, ids, 21).gaps == scored(config, ids, 1, with_gaps=True).gaps == ()


def test_the_fingerprint_ignores_costs() -> None:
    assert replace(CONFIG, base_s=1.0).fingerprint == CONFIG.fingerprint
    assert replace(CONFIG, agreement=0.5).fingerprint != CONFIG.fingerprint
    assert replace(CONFIG, agreement=0.5).token_map_hash == CONFIG.token_map_hash


def test_forwards_cost_more_beyond_the_knee() -> None:
    config = SimulatedConfig(
        base_s=1.0, per_token_s=0.1, knee_tokens=10, per_token_above_s=1.0, per_sequence_s=0.01
    )
    assert config.forward_s(2, 5) == pytest.approx(1.52)
    assert config.forward_s(1, 12) == pytest.approx(4.01)


def test_simulation_loads_no_torch() -> None:
    modules = [
        "base",
        "scheduling.scheduler",
        "sequence",
        "engine",
        "simulation.runner",
        "factory",
        "memory.kv_cache_manager",
        "sharding.follower",
        "thread_engine",
        "core",
    ]
    imports = "; ".join(f"import services.engine.{name}" for name in modules)
    code = f"import sys; {imports}; import services.common.token_map; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
