"""Changes of the keys of an engine."""

from typing import Any

from orchestration.deployment.diff import Change, Effect, changes
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import plan
from services.common.config import parse

FP8 = {"quantization": "fp8", "max_model_len": 8192}


def deployment(**target: Any) -> Deployment:
    return parse(Deployment, {"target": {"model": "/m/big", **target}}, "test")


def test_another_engine_replaces_the_replicas() -> None:
    before, after = deployment(), deployment(engine="vllm")
    assert changes(before, after) == (Change("target.engine", "builtin", "vllm", Effect.REPLACES),)
    assert plan(before, "here:1") != plan(after, "here:1")


def test_an_argument_that_is_added_changed_or_removed_replaces_the_replicas() -> None:
    before = deployment(engine="vllm", engine_args=FP8)
    after = deployment(engine="vllm", engine_args={"quantization": "awq", "seed": 1})
    assert changes(before, after) == (
        Change("target.engine_args.quantization", "fp8", "awq", Effect.REPLACES),
        Change("target.engine_args.max_model_len", 8192, None, Effect.REPLACES),
        Change("target.engine_args.seed", None, 1, Effect.REPLACES),
    )
    assert plan(before, "here:1") != plan(after, "here:1")
