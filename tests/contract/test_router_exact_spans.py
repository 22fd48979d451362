"""Parts of a response that mode fly decodes exactly: `speculation.exact_in`."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from router.text.tokenizer import Tokenizer
from tests.contract.fakes import FakeDrafter, FakeTarget, save_tokenizer
from tests.contract.router_rig import FLY, Answer, Rig, running
from tests.contract.test_router_prediction import Reciter

TARGET = "Xu has 12 xi in a pit. ```m = 34 + v``` He saw 56 xi, <think>as q</think> so v = 78 and no w. "
DRAFT = "Xu has 92 xi in a pot. ```n = 94 + u``` He saw 96 xi, <think>os q</think> so u = 98 and no k. "
ASKED: dict[str, Any] = {"prompt": "xu", "prompt_token_ids": None}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path))
    target, draft = (tokenizer.encode(text * 3) for text in (TARGET, DRAFT))
    assert len(target) == len(draft)
    fakes = [FakeTarget(Reciter(text=target))], [FakeDrafter(Reciter(text=draft))]
    async with running(tmp_path, *fakes, http_port=0, model_name="fake") as rig:
        yield rig


async def answer(rig: Rig, *spans: pb.Span) -> Answer:
    speculation = {"preset": "paper", "window": 1, "exact_in": spans}
    return await rig.generate(FLY, 400, **ASKED, speculation=speculation)


def rescued(found: Answer) -> str:
    """Return the text of the rescued tokens."""
    return "".join(token.text for token in found.tokens if token.verdict == pb.VERDICT_RESCUED)


async def test_by_default_every_kind_of_text_is_rescued(rig: Rig) -> None:
    assert set("9on") <= set(rescued(await answer(rig)))


async def test_digits_are_those_of_the_target(rig: Rig) -> None:
    found = await answer(rig, pb.SPAN_DIGITS)
    digits = [each for each in found.text if each.isdigit()]
    assert digits == [each for each in TARGET * 3 if each.isdigit()]
    assert set("on") <= set(rescued(found))


async def test_http_takes_the_same_names(rig: Rig) -> None:
    speculation = {"mode": "fly", "preset": "paper", "window": 1, "exact_in": ["digits"]}
    body: dict[str, Any] = {"model": "fake", "prompt": "xu", "max_tokens": 400, "temperature": 0}
    async with httpx2.AsyncClient(base_url=rig.addresses[1]) as client:
        found = (await client.post("/v1/completions", json={**body, "speculation": speculation})).json()
        wrong = await client.post("/v1/completions", json={**body, "speculation": {"exact_in": ["prose"]}})
    assert found["choices"][0]["text"] == (await answer(rig, pb.SPAN_DIGITS)).text
    assert wrong.status_code == 400 and "'digits', 'code', 'reasoning', 'structured' or 'tools'" in wrong.text


async def test_a_deployment_sets_spans_for_all_requests(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path))
    target, draft = (Reciter(text=tokenizer.encode(text)) for text in (TARGET, DRAFT))
    speculation = {"preset": "paper", "window": 1, "exact_in": ["digits"]}
    async with running(tmp_path, [FakeTarget(target)], [FakeDrafter(draft)], speculation=speculation) as rig:
        found = await rig.generate(FLY, 400, **ASKED)
        assert "12" in found.text and "9" not in found.text and rescued(found)
        info = await rig.stub.Info(common_pb2.InfoRequest())
    assert list(info.default_speculation.exact_in) == [pb.SPAN_DIGITS]
