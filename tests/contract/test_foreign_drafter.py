"""A drafter with another vocabulary over real sockets, with a simulated engine: target tokens in and out."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest

from flyserve.core.errors import ConfigError, InvalidRequest
from flyserve.core.messages import Open, Role
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import TokenSequence
from flyserve.core.types import Coupling
from flyserve.v1 import common_pb2, drafter_pb2_grpc
from flyserve.wire.streams import info_from_wire
from services.common.config import parse
from services.common.streams import DrafterStream
from services.drafter.ahead import DraftingLimits
from services.drafter.builtin import BuiltinDrafter
from services.drafter.config import DrafterConfig
from services.drafter.servicer import host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.drafter.vocabulary.session import MappedDrafter
from tests.contract.engine_rig import simulated
from tests.support.serving import connected
from tests.support.vocabularies import PAIRS, TEXTS

MAP = PAIRS["large", "small"]
PROMPT = MAP.target.encode(TEXTS[0].encode())
OPENING = Open("test", len(PROMPT), SamplingParams(stop_token_ids=(0,)), max_new_tokens=100)


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    language = {"vocab_size": len(MAP.drafter), "context_length": 256}
    async with simulated(Role.DRAFTER, **language) as engine:
        limits = DraftingLimits(max_draft=32, ahead_sequences=4)
        drafter = BuiltinDrafter(engine, SubDrafters(None), limits)
        mapped = MappedDrafter(drafter, MAP, "target's map", limits.max_draft)
        async with connected(host_drafter(mapped)) as channel:
            yield channel


async def test_it_introduces_itself_with_the_targets_vocabulary(channel: grpc.aio.Channel) -> None:
    stub = drafter_pb2_grpc.DrafterStub(channel)
    info, _ = info_from_wire(await stub.Info(common_pb2.InfoRequest()))
    assert (info.token_map_hash, info.vocab_size) == ("target's map", len(MAP.target))
    assert info.vocabulary_way == "text" and info.vocabulary_overlap == MAP.overlap
    assert info.context_length == 0, "its own context counts other tokens"


async def test_drafts_are_the_targets_tokens_whatever_is_kept(channel: grpc.aio.Channel) -> None:
    chance, sequence, num_drafted = random.Random(0), TokenSequence(PROMPT), 0
    async with DrafterStream(channel, OPENING) as stream:
        for _ in range(12):
            draft = await stream.draft(sequence, len(sequence), 8)
            assert len(draft.tokens) <= 8 and all(token < len(MAP.target) for token in draft.tokens)
            num_drafted += len(draft.tokens)
            sequence.extend(draft.tokens[: chance.randrange(9)])
            sequence.extend([chance.randrange(3, len(MAP.target))])
        assert stream.replays == 0 and num_drafted > 0
        stream.conclude(sequence, len(sequence))


async def test_the_same_sequence_has_the_same_draft_by_any_way_there(channel: grpc.aio.Channel) -> None:
    # Words, so that both ways to the same text settle on the same tokens of the drafter.
    added = MAP.target.encode(b" the cat sat there too.")
    whole = TokenSequence([*PROMPT, *added])
    async with DrafterStream(channel, OPENING) as stream:
        expected = await stream.draft(whole, len(whole), 8)
    async with DrafterStream(channel, OPENING) as stream:
        for end in range(len(PROMPT), len(whole) + 1):
            draft = await stream.draft(TokenSequence(whole.ids[:end]), end, 8)
    assert draft.tokens == expected.tokens


async def test_beyond_the_drafters_context_the_sequence_is_refused(channel: grpc.aio.Channel) -> None:
    async with DrafterStream(channel, OPENING) as stream:
        assert (await stream.draft(TokenSequence(PROMPT), 0, 8)).forwards > 0
        with pytest.raises(InvalidRequest, match="tokens of the drafter, whose context holds 256"):
            await stream.draft(TokenSequence(PROMPT * 8), 0, 8)


async def test_a_sequence_without_text_grows_into_drafts(channel: grpc.aio.Channel) -> None:
    # The drafter puts no token before a text, so the target's first token alone is nothing to it.
    sequence = TokenSequence(MAP.target.lead)
    async with DrafterStream(channel, replace(OPENING, prompt_length=1)) as stream:
        assert (await stream.draft(sequence, 1, 8)).tokens == ()
        sequence.extend(PROMPT)
        assert (await stream.draft(sequence, 1, 8)).forwards > 0
        assert stream.replays == 0


async def test_under_rejection_a_draft_has_all_probability_on_its_tokens(channel: grpc.aio.Channel) -> None:
    sampling = SamplingParams(temperature=1.0, seed=1, coupling=Coupling.REJECTION)
    async with DrafterStream(channel, replace(OPENING, sampling=sampling)) as stream:
        draft = await stream.draft(TokenSequence(PROMPT), 0, 8)
    assert [(each.ids, each.probabilities) for each in draft.distributions] == [
        ((token,), (1.0,)) for token in draft.tokens
    ]


async def test_it_decodes_no_response_by_itself(channel: grpc.aio.Channel) -> None:
    async with DrafterStream(channel, replace(OPENING, standalone=True)) as stream:
        with pytest.raises(InvalidRequest, match="another vocabulary"):
            await stream.draft(TokenSequence(PROMPT), 0, 8)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"vocabulary": "text", "model": "m"}, "vocabulary: is text, so target_tokenizer must be set"),
        ({"vocabulary": "auto", "model": "m"}, "vocabulary: .*'same' or 'text'"),
        ({"vocabulary": "text", "simulated": {}, "target_tokenizer": "t"}, "which has no tokenizer"),
    ],
)
def test_what_cannot_be_mapped_is_refused_by_name(given: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse(DrafterConfig, given, "drafter")
