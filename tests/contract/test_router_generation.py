"""Responses of a router over real sockets: modes, verdicts, and every reason for an end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flyserve.core.presets import DEFAULT_PRESET, PRESETS
from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from router.text.tokenizer import Tokenizer
from tests.contract.fakes import EOS, FakeDrafter, FakeTarget, HashModel
from tests.contract.router_rig import EXACT, FLY, PLAIN, Rig, ids, running


@pytest.fixture
async def rig(model: Path) -> AsyncIterator[Rig]:
    target = FakeTarget(HashModel(ends_at=120, certain_share=0.3))
    drafter = FakeDrafter(HashModel(agreement=0.85, ends_at=120))
    async with running(model, [target], [drafter]) as rig:
        yield rig


async def test_exact_equals_plain_token_for_token(rig: Rig) -> None:
    plain, exact = await rig.generate(PLAIN, 100), await rig.generate(EXACT, 100)
    assert ids(exact) == ids(plain) and exact.text == plain.text
    assert len(plain.tokens) == 100 and plain.finish_reason == pb.FINISH_REASON_LENGTH
    assert exact.statistics.rounds < 50 < plain.statistics.rounds == 100
    assert exact.statistics.tau > 2 and exact.statistics.rejected_by_exact > 0
    assert {t.verdict for t in plain.tokens} == {pb.VERDICT_PLAIN}


async def test_exact_does_not_depend_on_the_draft_length(rig: Rig) -> None:
    plain = ids(await rig.generate(PLAIN, 50))
    for draft_length in (0, 1, 4, 15, 64):
        exact = await rig.generate(EXACT, 50, speculation={"draft_length": {"max": draft_length}})
        assert ids(exact) == plain, draft_length


async def test_fly_rescues_tokens_and_says_so(rig: Rig) -> None:
    fly = await rig.generate(FLY, 100)
    rescued = [token for token in fly.tokens if token.verdict == pb.VERDICT_RESCUED]
    assert rescued and len(rescued) == fly.statistics.rescued
    assert all(token.id != token.choice and token.entropy >= 0.3 for token in rescued)
    assert all(t.id == t.choice for t in fly.tokens if t.verdict != pb.VERDICT_RESCUED)
    exact = await rig.generate(EXACT, 100)
    assert fly.statistics.tau > exact.statistics.tau


async def test_the_response_ends_behind_an_end_of_sequence_token(rig: Rig) -> None:
    for mode in (PLAIN, EXACT, FLY):
        response = await rig.generate(mode, 400)
        assert response.finish_reason == pb.FINISH_REASON_STOP_TOKEN
        assert ids(response).index(EOS) == len(response.tokens) - 1 == 116
        assert response.statistics.emitted == 117


async def test_a_stop_token_is_the_last_token(rig: Rig) -> None:
    plain = ids(await rig.generate(PLAIN))
    stop = plain[20]
    sampling = common_pb2.SamplingParams(stop_token_ids=[stop])
    response = await rig.generate(EXACT, sampling=sampling)
    assert ids(response) == plain[: plain.index(stop) + 1]
    assert response.finish_reason == pb.FINISH_REASON_STOP_TOKEN


async def test_ignore_eos_decodes_on_but_keeps_the_clients_stop_tokens(rig: Rig) -> None:
    response = await rig.generate(EXACT, 130, sampling=common_pb2.SamplingParams(ignore_eos=True))
    assert len(response.tokens) == 130 and EOS in ids(response)
    sampling = common_pb2.SamplingParams(ignore_eos=True, stop_token_ids=[EOS])
    assert len((await rig.generate(EXACT, 130, sampling=sampling)).tokens) == 117


async def test_the_text_ends_before_a_stop_string_in_every_mode(rig: Rig, model: Path) -> None:
    plain = await rig.generate(PLAIN, 40)
    decode = Tokenizer.load(model).backend.decode
    stop = decode(ids(plain)[:20])[-4:]
    for mode in (PLAIN, EXACT):
        response = await rig.generate(mode, 40, stop=[stop, "never said"])
        assert response.finish_reason == pb.FINISH_REASON_STOP_STRING
        assert response.text == plain.text[: plain.text.index(stop)]
        kept = len(response.tokens)
        assert ids(response) == ids(plain)[:kept] and kept <= 20
        assert stop in decode(ids(response)) and stop not in decode(ids(response)[:-1])


async def test_a_stream_says_the_same_in_pieces(rig: Rig) -> None:
    whole = await rig.generate(EXACT, 60)
    chunks = await rig.stream(EXACT, 60, request_id="mine")
    assert len(chunks) == whole.statistics.rounds
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token.id for chunk in chunks for token in chunk.tokens] == ids(whole)
    joined = "".join(token.text for token in whole.tokens)
    assert joined.rstrip("\ufffd") == whole.text.rstrip("\ufffd")
    assert (chunks[0].request_id, chunks[0].prompt_tokens) == ("mine", 4)
    assert [c.finish_reason for c in chunks[:-1]] == [pb.FINISH_REASON_UNSPECIFIED] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == pb.FINISH_REASON_LENGTH and chunks[-1].statistics.emitted == 60


async def test_statistics_add_up(rig: Rig) -> None:
    response = await rig.generate(EXACT, 60, sampling=common_pb2.SamplingParams(seed=7))
    statistics = response.statistics
    verdicts = [token.verdict for token in response.tokens]
    assert statistics.accepted == verdicts.count(pb.VERDICT_EXACT)
    assert statistics.emitted == len(verdicts)
    assert statistics.drafter_forwards == statistics.drafted + 1, "the target decided the first token"
    assert 0 < statistics.time_to_first_token_s < statistics.total_s
    assert statistics.draft_s + statistics.verify_s + statistics.wire_s <= statistics.total_s
    assert statistics.wire_bytes > 200 and statistics.replays == 0 and statistics.seed == 7


async def test_every_round_is_told_once_and_in_order(rig: Rig) -> None:
    fly, _ = await rig.choices(FLY, 100)
    chunks = await rig.stream(FLY, 100)
    for rounds, statistics in (
        (fly[0].rounds, fly[0].statistics),
        ([played for chunk in chunks for played in chunk.rounds], chunks[-1].statistics),
    ):
        assert [played.index for played in rounds] == list(range(statistics.rounds))
        assert sum(played.drafted for played in rounds) == statistics.drafted
        assert sum(played.accepted for played in rounds) == statistics.accepted
        times = [time for played in rounds for time in (played.start_s, played.end_s)]
        assert times == sorted(times) and times[0] >= 0 and times[-1] <= statistics.total_s
        for played in rounds:
            spent = played.draft_s + played.verify_s + played.wire_s
            assert 0 < spent <= played.end_s - played.start_s + 1e-9


async def test_beyond_the_drafters_context_it_decodes_without_drafts(model: Path) -> None:
    drafter = FakeDrafter(HashModel(context_length=32))
    async with running(model, [FakeTarget(HashModel())], [drafter]) as rig:
        response = await rig.generate(EXACT, 60)
        assert len(response.tokens) == 60 and "context length of 32 tokens" in response.warnings[0]


async def test_text_is_tokenized_and_info_names_both_models(rig: Rig, model: Path) -> None:
    text = "the fox says 😀"
    tokens = (await rig.stub.Tokenize(pb.TokenizeRequest(text=text))).tokens
    assert tuple(token.id for token in tokens) == Tokenizer.load(model).encode(text)
    assert tokens[0].text == "the"
    response = await rig.stub.Generate(pb.GenerateRequest(prompt=text, max_new_tokens=3))
    assert response.prompt_tokens == len(tokens) and len(response.choices[0].tokens) == 3
    info = await rig.stub.Info(common_pb2.InfoRequest())
    assert (info.target.role, info.drafter.role) == (common_pb2.ROLE_TARGET, common_pb2.ROLE_DRAFTER)
    default = info.default_speculation
    assert default.preset == DEFAULT_PRESET and info.draft_length_limit == 64
    assert (default.window, default.HasField("carry_after")) == (PRESETS[DEFAULT_PRESET].window, True)
    assert list(info.presets) == list(PRESETS) and (info.choices_limit, info.logprobs_limit) == (16, 20)
