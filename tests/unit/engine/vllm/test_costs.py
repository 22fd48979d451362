"""The costs of forwards, measured by requests to an idle engine."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from fly.messages import VERIFIED_TOKENS
from services.engine.vllm import costs
from services.engine.vllm.costs import measure_costs
from tests.unit.engine.vllm.vllm_stand_in import StandIn, stand_in_engine

REQUEST_S, ROW_S, FORWARD_S = 0.5, 0.01, 0.25
CONTEXT_LENGTH = 511


class Clocked(StandIn):
    """Takes a fixed time for each request, forward and row, on its own clock; some requests take longer."""

    now_s = 0.0

    async def generate(self, prompt: Any, params: Any, name: str, priority: int = 0) -> AsyncIterator[Any]:
        async for answer in super().generate(prompt, params, name, priority):
            forwards = params.max_tokens
            self.now_s += REQUEST_S + forwards * FORWARD_S + len(prompt["prompt_token_ids"]) * ROW_S
            self.now_s += 3.0 * (len(self.requests) % 3)
            yield answer


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    llm = Clocked()
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: llm.now_s))
    return llm


async def test_costs_are_those_of_the_fastest_requests_and_of_a_usual_round(clocked: Clocked) -> None:
    engine = stand_in_engine(clocked)
    found = await measure_costs(engine.client, CONTEXT_LENGTH)
    assert found is not None
    assert found.decode_s == pytest.approx(FORWARD_S)
    assert found.verify_s == pytest.approx(REQUEST_S + FORWARD_S + VERIFIED_TOKENS * ROW_S)
    scored = [params for _, params in clocked.requests if params.prompt_logprobs is not None]
    assert scored and all(params.extra_args["flyserve_rows"] == VERIFIED_TOKENS - 1 for params in scored)
    assert len(clocked.requests) <= 12
    await engine.stop()


async def test_a_context_without_room_has_no_costs(clocked: Clocked) -> None:
    engine = stand_in_engine(clocked)
    assert await measure_costs(engine.client, VERIFIED_TOKENS) is None and not clocked.requests
    await engine.stop()
