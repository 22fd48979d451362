"""Look-up that drafts for a target, without a draft model, through a router over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyserve.core.messages import Extend, Load, ModelInfo, Open, Role, StepTimes, Verification
from flyserve.core.request import SamplingParams
from flyserve.core.types import SparseDistribution
from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from flyserve.v1.drafter_pb2_grpc import DrafterStub
from flyserve.wire.streams import info_from_wire
from services.common.channel import open_channel
from services.common.host import Host
from services.lookup.config import SuffixConfig
from services.lookup.servicer import create_host
from tests.contract.fakes import HashModel, save_tokenizer
from tests.contract.router_rig import EXACT, FLY, PLAIN, PROMPT, Answer, Rig, ids, joined, running
from tests.contract.scripted import LoggingTarget
from tests.support.serving import serving

SAMPLING = common_pb2.SamplingParams
CACHED = 4096
TIMEOUT_S = 60


@dataclass(frozen=True)
class RepeatingModel(HashModel):
    """Every token follows from the last one and the seed, with a break now and then: the text repeats."""

    def choice(self, ids: Sequence[int], sampling: SamplingParams, prompt_length: int) -> int:
        if len(ids) >= self.ends_at:
            return super().choice(ids, sampling, prompt_length)
        seed = sampling.seed if sampling.temperature else 0
        return 30 + (7 * ids[-1] + seed + (len(ids) % 41 == 0)) % 23


class SlowTarget(LoggingTarget):
    """Reports long forwards: the router must not judge by the time that a test's messages take."""

    def __init__(self, model: HashModel, forward_s: float) -> None:
        super().__init__(model)
        self._forward_ns = round(forward_s * 1e9)

    def answer(self, known: Any, opening: Open, step: Any) -> Verification:
        answer = super().answer(known, opening, step)
        num_forwards = len(answer.choices) if isinstance(step, Extend) else 1
        return answer._replace(times=StepTimes(0, self._forward_ns * num_forwards, 1))


class LookupDrafter:
    """A look-up drafter in the place of a fake one."""

    def __init__(self, host: Host) -> None:
        self.host = host

    @classmethod
    async def create(cls, **config: Any) -> "LookupDrafter":
        made = SuffixConfig(role=Role.DRAFTER, max_draft=64, response_cache_tokens=CACHED, **config)
        return cls(await create_host(made))

    async def described(self) -> tuple[ModelInfo, Load]:
        async with open_channel(self.host.address) as channel:
            return info_from_wire(await DrafterStub(channel).Info(common_pb2.InfoRequest()))

    async def caches(self, num_tokens: int) -> None:
        """Return when it has cached this number of tokens: a response ends before its stream is closed."""
        async with asyncio.timeout(TIMEOUT_S):
            while (await self.described())[1].kv_cached != num_tokens:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def stage(
    folder: Path,
    drafter: LookupDrafter,
    model: HashModel | None = None,
    forward_s: float = 20.0,
    **config: Any,
) -> AsyncIterator[tuple[Rig, LoggingTarget]]:
    target = SlowTarget(model or RepeatingModel(), forward_s)
    async with running(save_tokenizer(folder), [target], [drafter], **config) as rig:  # type: ignore[list-item]
        yield rig, target


async def test_exact_equals_plain_in_fewer_rounds(tmp_path: Path) -> None:
    async with stage(tmp_path, await LookupDrafter.create()) as (rig, target):
        for fields in ({}, {"sampling": SAMPLING(temperature=0.8, seed=5)}, {"logprobs": 2}):
            plain, exact, fly = [await rig.generate(mode, 200, **fields) for mode in (PLAIN, EXACT, FLY)]
            assert ids(exact) == ids(plain) and exact.text == plain.text
            assert exact.statistics.rounds < 0.7 * plain.statistics.rounds
            assert exact.statistics.accepted > 100 and not exact.warnings
            assert fly.statistics.accepted > 100 and len(fly.tokens) == 200
    assert target.updates.steps


async def test_rejection_sampling_gets_the_whole_mass_on_each_draft(tmp_path: Path) -> None:
    sampling = SAMPLING(temperature=0.8, seed=5, coupling=common_pb2.COUPLING_REJECTION)
    async with stage(tmp_path, await LookupDrafter.create()) as (rig, target):
        response = await rig.generate(EXACT, 100, sampling=sampling)
    drafted = [step for step in target.verified if step.num_drafts]
    assert drafted and response.statistics.accepted
    for step in drafted:
        drafts = step.update.tokens[-step.num_drafts :]
        assert step.distributions == tuple(SparseDistribution((token,), (1.0,)) for token in drafts)


async def test_text_that_never_repeats_costs_few_requests(tmp_path: Path) -> None:
    model = HashModel(context_length=1024)
    async with stage(tmp_path, await LookupDrafter.create(), model, 0.02, stream_interval_s=10.0) as (
        rig,
        target,
    ):
        response = await rig.generate(EXACT, 500)
    steps = [step.max_tokens if isinstance(step, Extend) else 1 for step in target.asked]
    assert steps[0] == 1 and len(steps) < 30
    assert len(response.tokens) == 500


async def test_a_finished_response_is_drafted_the_next_time(tmp_path: Path) -> None:
    drafter = await LookupDrafter.create()
    async with stage(tmp_path, drafter, HashModel()) as (rig, _):
        answers = [await rig.generate(EXACT, 60, cache_salt="mine")]
        await drafter.caches(len(PROMPT) + 60)
        answers += [await rig.generate(EXACT, 60, cache_salt=salt) for salt in ("", "yours", "mine")]
    first, none, other, again = answers
    assert ids(first) == ids(none) == ids(other) == ids(again)
    assert not any(each.statistics.accepted for each in (first, none, other)), "salts share nothing"
    assert again.statistics.accepted > 40 and again.statistics.rounds < 15


async def test_every_choice_is_cached(tmp_path: Path) -> None:
    drafter = await LookupDrafter.create()
    sampling = SAMPLING(temperature=0.8, seed=5)
    async with stage(tmp_path, drafter) as (rig, _):
        choices, _ = await rig.choices(EXACT, 30, n=3, sampling=sampling)
        await drafter.caches(3 * (len(PROMPT) + 30))
    assert [len(choice.tokens) for choice in choices] == [30] * 3


async def test_a_resumed_response_is_cached_as_a_whole(tmp_path: Path) -> None:
    drafter = await LookupDrafter.create()
    async with stage(tmp_path, drafter, HashModel()) as (rig, _):
        plain = ids(await rig.generate(PLAIN, 60))
        resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=plain[:20])])
        chunks = await rig.stream(EXACT, 60, resume=resume)
        await drafter.caches(len(PROMPT) + 60)
        again = await rig.generate(EXACT, 60)
    assert plain[:20] + joined(chunks) == plain == ids(again)
    assert again.statistics.accepted > 40


async def test_a_full_drafter_costs_drafts_only(tmp_path: Path) -> None:
    drafter = await LookupDrafter.create(max_sequences=1)
    sampling = SAMPLING(temperature=0.8, seed=5)
    async with stage(tmp_path, drafter) as (rig, _):
        plain, _ = await rig.choices(PLAIN, 120, n=4, sampling=sampling)
        exact, response = await rig.choices(EXACT, 120, n=4, sampling=sampling)
        assert (await drafter.described())[0].max_sequences == 1
    assert [ids(choice) for choice in exact] == [ids(choice) for choice in plain]
    assert any(choice.statistics.drafted for choice in exact)
    assert any("rounds had no draft" in warning and "full" in warning for warning in response.warnings)


async def test_a_drafter_that_dies_and_starts_again_with_an_empty_cache_fails_nothing(tmp_path: Path) -> None:
    first = await LookupDrafter.create()
    is_dead = False
    async with stage(tmp_path, first, draft_patience=1e6) as (rig, target):
        plain = await rig.generate(PLAIN, 200)

        async def dies(step: int) -> None:
            nonlocal is_dead
            if not is_dead and any(each.num_drafts for each in target.verified):
                is_dead = True
                await first.host.drain(0.0)

        target.script = dies
        dying, dead = [await rig.generate(EXACT, 200) for _ in range(2)]
        assert ids(dying) == ids(dead) == ids(plain)
        assert dying.statistics.drafted and not dead.statistics.drafted and dead.warnings
        second = await LookupDrafter.create(address=first.host.address)
        async with serving(second.host):
            assert ids(await until_drafted(rig)) == ids(plain)
            await second.caches(len(PROMPT) + 200)


async def until_drafted(rig: Rig) -> Answer:
    """Send the request until the router has found the drafter again."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (answer := await rig.generate(EXACT, 200)).statistics.drafted:
            pass
    return answer


async def test_it_describes_itself_as_a_drafter(tmp_path: Path) -> None:
    drafter = await LookupDrafter.create()
    async with stage(tmp_path, drafter) as (rig, _):
        info = (await rig.stub.Info(common_pb2.InfoRequest())).drafter
        described, load = await drafter.described()
    assert (info.model_id, info.architecture, info.weight_fingerprint) == ("suffix", "suffix", "")
    assert described.role is Role.DRAFTER and load.kv_used == 0 < load.kv_capacity
