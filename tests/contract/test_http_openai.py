"""The HTTP face as the `openai` package sees it: completions, chat, streams, errors."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from flyserve.core.request import SamplingParams
from flyserve.core.types import Coupling
from flyserve.v1 import generation_pb2 as pb
from tests.contract.fakes import dies_at
from tests.contract.http_rig import MODEL, HttpRig, serving_http
from tests.contract.router_rig import FLY
from tests.contract.scripted import logprob

FOX = [{"role": "user", "content": "the fox"}]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving_http(tmp_path_factory.mktemp("model")) as rig:
        yield rig


async def test_a_completion_is_what_grpc_gives(rig: HttpRig) -> None:
    over_grpc, response = await rig.rig.choices(FLY, 40, prompt="the fox", prompt_token_ids=None)
    completion = await rig.openai.completions.create(
        model=MODEL, prompt="the fox", max_tokens=40, temperature=0
    )
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason, choice.index) == (over_grpc[0].text, "length", 0)
    assert completion.usage is not None
    assert (
        completion.usage.prompt_tokens == response.prompt_tokens and completion.usage.completion_tokens == 40
    )
    assert completion.usage.total_tokens == 40 + response.prompt_tokens
    assert (completion.object, completion.model) == ("text_completion", MODEL) and completion.id.startswith(
        "cmpl-"
    )


async def test_a_streamed_completion_says_the_same_in_pieces(rig: HttpRig) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "the fox", "max_tokens": 50, "temperature": 0}
    whole = await rig.openai.completions.create(**asked)
    stream = await rig.openai.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len(chunks) > 2 and not last.choices and last.usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks)


async def test_a_chat_is_completed_after_its_template(rig: HttpRig) -> None:
    plain = await rig.openai.completions.create(model=MODEL, prompt="the fox\n", max_tokens=30, temperature=0)
    chat = await rig.openai.chat.completions.create(
        model=MODEL, messages=FOX, max_completion_tokens=30, temperature=0
    )
    assert chat.choices[0].message.content == plain.choices[0].text
    assert chat.choices[0].message.role == "assistant" and chat.choices[0].finish_reason == "length"
    assert chat.usage is not None and plain.usage is not None
    assert chat.usage.prompt_tokens == plain.usage.prompt_tokens


async def test_a_streamed_chat_begins_with_the_role(rig: HttpRig) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": FOX, "max_tokens": 40, "temperature": 0}
    whole = await rig.openai.chat.completions.create(**asked)
    deltas = [
        chunk.choices[0].delta
        async for chunk in await rig.openai.chat.completions.create(**asked, stream=True)
    ]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content


async def test_the_text_ends_before_a_stop_string(rig: HttpRig) -> None:
    whole = await rig.openai.completions.create(model=MODEL, prompt="the fox", max_tokens=60, temperature=0)
    text = whole.choices[0].text
    stop = text[20:24]
    for stops in (stop, ["never said", stop]):
        completion = await rig.openai.completions.create(
            model=MODEL, prompt="the fox", max_tokens=60, temperature=0, stop=stops
        )
        assert completion.choices[0].finish_reason == "stop"
        assert completion.choices[0].text == text[: text.index(stop)]


async def test_one_seed_gives_one_text_and_every_choice_has_its_own(rig: HttpRig) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": FOX, "max_tokens": 20, "temperature": 0.9, "n": 3}
    first, again = [await rig.openai.chat.completions.create(**asked, seed=-5) for _ in range(2)]
    other = await rig.openai.chat.completions.create(**asked, seed=6)
    texts = [
        [choice.message.content for choice in completion.choices] for completion in (first, again, other)
    ]
    assert texts[0] == texts[1] != texts[2] and len(set(texts[0])) == 3
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert first.usage is not None and first.usage.completion_tokens == 60
    stream = await rig.openai.chat.completions.create(**asked, seed=-5, stream=True)
    streamed = ["", "", ""]
    async for chunk in stream:
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts[0]


async def test_several_prompts_have_their_choices_one_after_the_other(rig: HttpRig) -> None:
    prompts = ["the fox", "the dog", "over"]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "temperature": 0.9, "seed": 3, "n": 2}
    alone = [await rig.openai.completions.create(**asked, prompt=prompt) for prompt in prompts]
    together = await rig.openai.completions.create(**asked, prompt=prompts)
    assert [choice.text for choice in together.choices] == [
        c.text for completion in alone for c in completion.choices
    ]
    assert [choice.index for choice in together.choices] == list(range(6))
    assert together.usage is not None
    assert together.usage.total_tokens == sum(
        completion.usage.total_tokens for completion in alone if completion.usage
    )
    by_ids = await rig.openai.completions.create(**asked, prompt=[[40, 41], [42]])
    assert len(by_ids.choices) == 4 and by_ids.usage is not None and by_ids.usage.prompt_tokens == 3


async def test_log_probabilities_of_a_completion(rig: HttpRig) -> None:
    asked = {"max_tokens": 30, "temperature": 0, "logprobs": 2, "verdicts": True}
    (choice,) = (await rig.complete(**asked))["choices"]
    tokens, completion = choice["flyserve"]["tokens"], choice["logprobs"]
    named = zip(completion["tokens"], tokens, strict=True)
    assert all(name == token["text"] for name, token in named if token["text"] and token["text"].isascii())
    assert completion["token_logprobs"] == pytest.approx([logprob(token["id"]) for token in tokens])
    for token, name, top in zip(tokens, completion["tokens"], completion["top_logprobs"], strict=True):
        choice_id = (token["choice"] or token)["id"]
        assert name in top and len(top) == 2 + (token["id"] not in (choice_id, choice_id + 1))
    offsets = [sum(len(token["text"]) for token in tokens[:index]) for index in range(30)]
    assert completion["text_offset"] == offsets
    chunks = await rig.stream("/v1/completions", prompt="the fox", **asked)
    assert [at for chunk in chunks for at in chunk["choices"][0]["logprobs"]["text_offset"]] == offsets


async def test_with_none_of_the_most_likely_tokens_a_completion_lists_the_token_alone(rig: HttpRig) -> None:
    asked = {"max_tokens": 8, "temperature": 0, "logprobs": 0, "echo": True}
    found = (await rig.complete(**asked))["choices"][0]["logprobs"]
    listed = zip(found["tokens"], found["token_logprobs"], strict=True)
    assert found["top_logprobs"] == [None, *({name: value} for name, value in list(listed)[1:])]


async def test_log_probabilities_of_a_chat(rig: HttpRig) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": FOX, "max_tokens": 20, "temperature": 0}
    completion = await rig.openai.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    assert completion.choices[0].logprobs is not None and completion.choices[0].logprobs.content is not None
    for entry in completion.choices[0].logprobs.content:
        assert entry.logprob < 0 and len(entry.top_logprobs) == 3
        assert entry.token.startswith("bytes:") or bytes(entry.bytes or ()).decode() == entry.token
    bare = await rig.openai.chat.completions.create(**asked, logprobs=True)
    assert bare.choices[0].logprobs is not None and bare.choices[0].logprobs.content is not None
    assert [entry.top_logprobs for entry in bare.choices[0].logprobs.content] == [[]] * 20


async def test_verdicts_are_told_where_they_are_asked_for(rig: HttpRig) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": FOX, "max_tokens": 60, "temperature": 0}
    whole = await rig.openai.chat.completions.create(**asked, extra_body={"verdicts": True})
    completion = whole.choices[0].model_extra["flyserve"] if whole.choices[0].model_extra else {}
    chunks = await rig.stream("/v1/chat/completions", **{**asked, "verdicts": True})
    pieces = [chunk["flyserve"] for chunk in chunks]
    assert [token for piece in pieces for token in piece["tokens"]] == completion["tokens"]
    assert {token["verdict"] for token in completion["tokens"]} >= {"exact", "rescued", "corrected"}
    for token in completion["tokens"]:
        assert (token["choice"] is not None) == (token["verdict"] == "rescued")
    statistics = completion["statistics"]
    assert set(statistics) == {field.name for field in pb.Statistics.DESCRIPTOR.fields}
    for rounds in (completion["rounds"], [played for piece in pieces for played in piece["rounds"]]):
        assert [played["index"] for played in rounds] == list(range(statistics["rounds"]))
        assert sum(played["accepted"] for played in rounds) == statistics["accepted"]
    assert [set(piece) for piece in pieces[:-1]] == [{"tokens", "rounds"}] * (len(pieces) - 1)
    assert set(pieces[-1]) == {"tokens", "rounds", "statistics", "warnings"} and completion["warnings"] == []


async def test_speculation_is_the_requests_own(rig: HttpRig) -> None:
    plain = await rig.complete(verdicts=True, temperature=0, speculation={"mode": "plain"})
    assert {token["verdict"] for token in plain["choices"][0]["flyserve"]["tokens"]} == {"plain"}
    changed = {"mode": "fly", "preset": "official", "draft_length": {"max": 4}}
    rule = {"window": 2, "threshold": 0.1, "tail": "carry", "carry_after": 1, "entropy": "top_k"}
    guards = {"guard_stops": True, "guard_excluded": False, "strict_prefix_tokens": 3}
    drafts = {"sub_drafter": False, "reproducible_drafts": True}
    completion = await rig.complete(
        verdicts=True, max_tokens=40, speculation=changed | rule | guards | drafts
    )
    rounds = completion["choices"][0]["flyserve"]["rounds"]
    assert max(played["drafted"] for played in rounds) == 4
    assert all(played["drafted"] for played in rounds)
    assert rig.drafter.openings[-1].without_sub_drafter and rig.drafter.openings[-1].without_copies


async def test_every_sampling_field_reaches_both_services(rig: HttpRig) -> None:
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3}
    filters = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "coupling": "rejection"}
    ends = {"min_tokens": 3, "stop_token_ids": [303], "ignore_eos": True, "logit_bias": {"9": -2}, "seed": 7}
    await rig.complete(**penalties, **filters, **ends, max_tokens=5, cache_salt="tenant")
    coupled = Coupling.REJECTION
    expected = SamplingParams(0.7, 40, 0.9, 0.05, 1.1, 0.2, 0.3, {9: -2.0}, 3, False, (303,), 7, coupled)
    for service in (rig.target, rig.drafter):
        opening = service.openings[-1]
        assert (opening.sampling, opening.cache_salt) == (expected, "tenant")
    for top_k, expected_k in ((-1, 0), (2**32 - 1, 2**32 - 1)):
        await rig.complete(max_tokens=5, top_k=top_k)
        sampling = rig.target.openings[-1].sampling
        assert (sampling.temperature, sampling.top_k) == (1.0, expected_k)


async def test_models_are_listed(rig: HttpRig) -> None:
    (model,) = (await rig.openai.models.list()).data
    assert (model.id, model.owned_by, model.object) == (MODEL, "flyserve", "model")
    assert (await rig.openai.models.retrieve(MODEL)).id == MODEL
    assert model.model_extra is not None and model.model_extra["max_model_len"] == 512
    assert model.model_extra["flyserve"]["default_speculation"]["mode"] == "fly"
    with pytest.raises(openai.NotFoundError) as caught:
        await rig.openai.models.retrieve("org/other")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_errors_are_the_packages_own(rig: HttpRig) -> None:
    with pytest.raises(openai.BadRequestError) as rejected:
        await rig.openai.chat.completions.create(model=MODEL, messages=FOX, temperature=-1)
    assert (rejected.value.param, rejected.value.type) == ("temperature", "invalid_request_error")
    assert "is -1.0, must be finite and at least 0" in rejected.value.message
    with pytest.raises(openai.NotFoundError) as unknown:
        await rig.openai.completions.create(model="gpt-4", prompt="the fox")
    assert unknown.value.code == "model_not_found"


async def test_an_error_in_mid_stream_is_raised_by_the_package(tmp_path: Path) -> None:
    async with serving_http(tmp_path, replica_wait_s=0.1) as rig:
        dies_at(rig.target, 4)
        stream = await rig.openai.completions.create(
            model=MODEL, prompt="the fox", max_tokens=200, temperature=0, stream=True
        )
        chunks = []
        with pytest.raises(openai.APIError, match="no target replica"):
            async for chunk in stream:
                chunks.append(chunk)
        assert len(chunks) == 3


async def test_the_figures_of_drafts_come_in_the_shape_of_vllm(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "the fox", "max_tokens": 40, "n": 2, "seed": 1}
    async with serving_http(tmp_path, http={"speculation_metrics": True}) as rig:
        whole = await rig.complete(**asked)
        chunks = await rig.stream("/v1/completions", **asked)
        counted = await rig.stream("/v1/completions", stream_options={"include_usage": True}, **asked)
    found = whole["metrics"]["speculative_decoding"]
    histogram, num_accepted = found["acceptance_histogram"], found["num_accepted_draft_tokens"]
    assert len(histogram) == found["num_spec_tokens"] + 1
    assert sum(histogram) == found["num_spec_steps"] > 0 and 0 < found["num_spec_tokens"] <= 16
    assert sum(length * number for length, number in enumerate(histogram)) == num_accepted
    assert found["draft_acceptance_rate"] == num_accepted / found["num_draft_tokens"]
    assert found["mean_acceptance_length"] > 1
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert all(chunk["choices"] for chunk in chunks), "nobody has asked for a chunk without choices"
    assert not counted[-1]["choices"] and counted[-1]["usage"]
    for *others, last in (chunks, counted):
        assert last["metrics"] == whole["metrics"] and not any("metrics" in chunk for chunk in others)


async def test_metrics_are_served_beside_the_api(rig: HttpRig) -> None:
    await rig.complete(max_tokens=60, seed=1)
    response = await rig.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
        if family.name.startswith("vllm:")
    }
    num_drafts, num_tokens, num_accepted = (
        values[f"vllm:spec_decode_num_{name}_total"] for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert 0 < num_drafts < num_accepted < num_tokens
    series = [line for line in response.text.splitlines() if line.startswith("vllm:")]
    assert series and all(f'model_name="{MODEL}"' in line and 'engine="0"' in line for line in series)
    by_position = [line for line in series if "per_pos_total" in line]
    assert by_position and 'position="0"' in by_position[0]
    assert sum(float(line.rpartition(" ")[2]) for line in by_position) == num_accepted
