"""Sub-drafter sessions: proposals, cached responses, and isolation between cache salts."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Draft, DraftStep, Open, Role
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceMirror, SequenceUpdate, TokenSequence
from flyserve.core.types import Coupling
from services.lookup.config import SuffixConfig
from services.lookup.engine import SuffixEngine
from services.lookup.index import ngram
from services.lookup.index.budget import IndexBudget
from services.lookup.session import LookupSession

PROMPT = [90, 91, 92]
RESPONSE = [1, 2, 3, 4, 5, 6]


class Client:
    """A client of one session, which sends absolute-position updates."""

    def __init__(
        self, engine: SuffixEngine, salt: str = "", prompt_length: int = len(PROMPT), **fields: Any
    ) -> None:
        opening = Open("test", prompt_length, cache_salt=salt, **fields)
        self.session = LookupSession(engine.open(opening), opening, SuffixConfig(max_tokens=1000))
        self._mirror = SequenceMirror()

    def update(self, ids: list[int], decided: int) -> SequenceUpdate:
        return self._mirror.update(TokenSequence(ids), (), decided)

    async def ask(self, ids: list[int], decided: int, max_tokens: int = 4) -> Draft:
        draft = await self.session.step(DraftStep(self.update(ids, decided), max_tokens))
        self._mirror.append(draft.tokens)
        return draft


def suffix_engine(response_cache_tokens: int = 1024) -> SuffixEngine:
    return SuffixEngine(response_cache_tokens, IndexBudget())


async def respond(engine: SuffixEngine, decided: int, salt: str = "") -> None:
    """Run one whole response, of which `decided` tokens are decided, and link it."""
    client = Client(engine, salt)
    await client.ask(PROMPT + RESPONSE[:2], len(PROMPT))
    await client.session.finish(client.update(PROMPT + RESPONSE, len(PROMPT) + decided))
    client.session.close()
    while engine.link():
        pass


async def proposed(engine: SuffixEngine, ids: list[int], salt: str = "") -> tuple[int, ...]:
    return (await Client(engine, salt).ask([80, 81, 82, *ids], len(PROMPT))).tokens


async def test_a_finished_response_gives_proposals_to_the_next_request() -> None:
    engine = suffix_engine()
    assert await proposed(engine, [1, 2, 3, 4]) == ()
    await respond(engine, decided=6)
    assert await proposed(engine, [1, 2, 3, 4]) == (5, 6)
    assert engine.response_cache_tokens == len(PROMPT) + 6


async def test_only_decided_tokens_are_cached() -> None:
    engine = suffix_engine()
    await respond(engine, decided=4)
    assert await proposed(engine, [1, 2, 3]) == (4,)


async def test_decided_tokens_are_cached_when_the_client_disconnects() -> None:
    engine = suffix_engine()
    client = Client(engine)
    await client.ask(PROMPT + RESPONSE, len(PROMPT) + 4)
    client.session.close()
    assert engine.response_cache_tokens == len(PROMPT) + 4


async def test_the_cache_is_shared_within_a_salt_only() -> None:
    engine = suffix_engine()
    await respond(engine, 6, salt="mine")
    ids = [1, 2, 3, 4]
    assert await proposed(engine, ids) == await proposed(engine, ids, "yours") == ()
    assert await proposed(engine, ids, "mine") == (5, 6)


async def test_a_step_for_no_tokens_only_updates() -> None:
    client = Client(suffix_engine())
    ids = [7, 8, 9, 7, 8]
    assert (await client.ask(ids, 0, max_tokens=0)).tokens == ()
    assert (await client.ask(ids, 0, max_tokens=1)).tokens == (9,)


async def test_a_rejected_proposal_leaves_no_trace() -> None:
    client = Client(suffix_engine())
    assert (await client.ask([7, 8, 9, 7, 8], 0, max_tokens=1)).tokens == (9,)
    draft = await client.ask([7, 8, 9, 7, 8, 5, 7, 8, 5, 7, 8], 0, max_tokens=1)
    assert draft.tokens == (5,)


async def drafted(step: Callable[[SequenceUpdate], DraftStep], **sampling: Any) -> Draft:
    """Draft for a target after text of which the next tokens are 3 and 4."""
    config = SuffixConfig(role=Role.DRAFTER, max_draft=8)
    opening = Open("test", 1, SamplingParams(**sampling))
    session = LookupSession(suffix_engine().open(opening), opening, config)
    ids = [1, 2, 3, 4, 5] * 4 + [1, 2]
    return await session.step(step(SequenceMirror().update(TokenSequence(ids), (), 0)))


async def test_a_draft_ends_with_a_stop_token_if_asked() -> None:
    def ending(update: SequenceUpdate) -> DraftStep:
        return DraftStep(update, 8, end_at_stop=True)

    whole = (await drafted(lambda update: DraftStep(update, 8), stop_token_ids=(4,))).tokens
    assert whole[:4] == (3, 4, 5, 1)
    assert (await drafted(ending, stop_token_ids=(4,))).tokens == (3, 4)
    assert (await drafted(ending, stop_token_ids=(4,), ignore_eos=True)).tokens == whole
    assert (await drafted(ending, stop_token_ids=(99,))).tokens == whole


async def test_a_draft_for_rejection_sampling_has_all_mass_on_its_tokens() -> None:
    def two(update: SequenceUpdate) -> DraftStep:
        return DraftStep(update, 2)

    draft = await drafted(two, temperature=1.0, coupling=Coupling.REJECTION)
    assert [(each.ids, each.probabilities) for each in draft.distributions] == [
        ((3,), (1.0,)),
        ((4,), (1.0,)),
    ]
    assert not (await drafted(two, temperature=1.0)).distributions
    assert not (await drafted(two, coupling=Coupling.REJECTION)).distributions


async def test_a_draft_that_is_too_long_is_cut() -> None:
    assert len((await drafted(lambda update: DraftStep(update, 9))).tokens) == 8


async def test_an_engine_without_a_cache_looks_in_the_sequence_alone() -> None:
    engine = suffix_engine(response_cache_tokens=0)
    await respond(engine, decided=6)
    assert engine.response_cache_tokens == engine.response_cache_capacity == 0
    assert await proposed(engine, [1, 2, 3, 4]) == ()
    assert await proposed(engine, [1, 2, 3, 4, 7, 1, 2, 3]) == (4, 7, 1, 2)


@given(st.lists(st.tuples(st.integers(0, 8), st.lists(st.integers(1, 4), max_size=12)), max_size=6))
async def test_reproducible_drafts_depend_on_the_sequence_alone(steps: list[tuple[int, list[int]]]) -> None:
    engine, ids = suffix_engine(), list(PROMPT)
    client = Client(engine, without_copies=True)
    for num_dropped, added in steps:
        ids = ids[: max(len(PROMPT), len(ids) - num_dropped)] + added
        draft = await client.ask(ids, len(PROMPT))
        again = await Client(engine, without_copies=True).ask(ids, len(PROMPT))
        assert draft.tokens == again.tokens


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=40), max_size=6))
async def test_reproducible_drafts_do_not_depend_on_the_parts_of_a_long_text(parts: list[list[int]]) -> None:
    sizes = {"_MAX_ADDED": 6, "_MIN_RECENT": 3, "_MAX_RECENT": 9, "_NGRAMS_PER_CALL": 20}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(ngram, name, value)
        engine, ids = suffix_engine(), list(PROMPT)
        client = Client(engine, without_copies=True)
        for added in parts:
            ids = ids + added
            draft = await client.ask(ids, len(PROMPT))
            again = await Client(engine, without_copies=True).ask(ids, len(PROMPT))
            assert draft.tokens == again.tokens


async def test_reproducible_drafts_need_room_in_the_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "_MAX_ADDED", 6)
    monkeypatch.setattr(ngram, "_MIN_RECENT", 20)
    engine, ids = SuffixEngine(0, IndexBudget(max_tokens=10)), [1, 2, 3, 4, 5] * 8
    assert (await Client(engine).ask(ids, len(PROMPT))).tokens
    with pytest.raises(InvalidRequest, match=r"20 more tokens must be indexed; .* at most 10 .lookup_index"):
        await Client(engine, without_copies=True).ask(ids, len(PROMPT))
