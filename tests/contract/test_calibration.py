"""A calibration against a router: replays equal live responses, token for token."""

import asyncio
import io
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flyserve.calibration.candidate import Candidate, Gates, candidates
from flyserve.calibration.collect import Collector
from flyserve.calibration.judge import Judge
from flyserve.calibration.prompts import Prompt
from flyserve.calibration.recording import Pair, RecordedPrompt, Recording
from flyserve.calibration.replay import Replayed
from flyserve.calibration.run import Calibration, Save
from flyserve.client import Client
from flyserve.core.errors import ConfigError, FlyServeError, Overloaded
from flyserve.core.messages import Extend, Open, Verification, VerifyStep
from flyserve.core.request import DraftLength, SpeculationParams
from flyserve.core.response import Response
from flyserve.core.sequence import ReplicatedSequence
from flyserve.core.types import EntropyEstimator, FlyRule, Mode, PositionLogprobs, Verdict
from tests.contract.fakes import VOCAB_SIZE, FakeDrafter, FakeTarget, HashModel
from tests.contract.router_rig import running

LENGTH = 40
SERVED = ("official", "vllm", "flyserve", "normalized entropy 0.2", "gap 0.7", "tail reject")
PROMPTS = [tuple(range(start, start + 5)) for start in (40, 60, 80, 100)]
OFTEN = FlyRule(threshold=0.0, window=1, min_following=1, guard_stops=True)
"""A rule that rescues several tokens in a round."""
_UNLIKELY = -9.0
COUNTED = ("rounds", "drafted", "emitted", "accepted", "rescued", "carried", "draft_rounds")


class Target(FakeTarget):
    """A target whose entropies, gaps and log-probabilities are those of one distribution per position."""

    def answer(self, known: ReplicatedSequence, opening: Open, step: VerifyStep | Extend) -> Verification:
        answer = super().answer(known, opening, step)
        ids = known.tokens.ids
        first = len(ids) - len(answer.choices) + isinstance(step, VerifyStep)
        drafts = ids[first:] if isinstance(step, VerifyStep) else ()
        places = range(first, first + len(answer.choices))
        tops = [_top(choice, place) for choice, place in zip(answer.choices, places, strict=True)]
        known_drafts = [*drafts, *[None] * (len(tops) - len(drafts))]
        logprobs = [
            PositionLogprobs(None if draft is None else dict(top).get(draft, _UNLIKELY), top[0][1], top)
            for top, draft in zip(tops, known_drafts, strict=True)
        ]
        entropies = [-sum(math.exp(value) * value for _, value in top) for top in tops]
        if opening.entropy is EntropyEstimator.NORMALIZED:
            entropies = [each / 4 + 0.01 * (place % 7) for each, place in zip(entropies, places, strict=True)]
        return answer._replace(
            entropies=tuple(entropies) if answer.entropies else (),
            gaps=tuple(each.gap for each in logprobs[: len(drafts)]) if opening.with_gaps else (),
            logprobs=tuple(logprobs) if opening.num_logprobs is not None else (),
        )


def _top(choice: int, place: int) -> tuple[tuple[int, float], ...]:
    """Return the three most likely tokens: the second is what a drafter that deviates chooses."""
    first, share = 0.55 + 0.35 * (place * 37 % 11) / 11, 0.3 + 0.6 * (place * 53 % 13) / 13
    second = 2 + (choice - 1) % (VOCAB_SIZE - 2)
    rest = 1 - first
    values = (first, rest * max(share, 0.5), rest * (1 - max(share, 0.5)))
    return tuple(zip((choice, second, 2 + choice % (VOCAB_SIZE - 2)), map(math.log, values), strict=True))


@asynccontextmanager
async def collecting(
    model: Path,
    ends_at: int = 10_000,
    drafter: FakeDrafter | None = None,
    context_length: int = 512,
    **config: Any,
) -> AsyncIterator[Collector]:
    target = Target(HashModel(ends_at=ends_at, context_length=context_length))
    drafter = drafter or FakeDrafter(HashModel(agreement=0.75, ends_at=ends_at))
    async with running(model, [target], [drafter], **config) as rig:
        client = Client(rig.addresses[0])
        deployment = await asyncio.to_thread(client.info)
        try:
            yield Collector(client, Pair.of(deployment, None), LENGTH)
        finally:
            client.close()


def live(collector: Collector, prompt: RecordedPrompt, rule: Candidate) -> Response:
    """Return the response that the deployment gives under the preset that the rule is written as."""
    assert collector.client is not None
    fields = {**rule.preset(), "reproducible_drafts": True}
    speculation = SpeculationParams(mode=Mode.FLY, draft_length=DraftLength(15), **fields)
    return collector.client.generate(prompt.ids, LENGTH, speculation=speculation)


def assert_equal(replayed: Replayed | None, response: Response) -> None:
    assert replayed is not None
    expected = [(token.id, token.verdict, token.choice) for token in response.tokens]
    assert [(token.id, token.verdict, token.choice) for token in replayed.tokens] == expected
    assert replayed.finish_reason is response.finish_reason
    found = {name: getattr(replayed.statistics, name) for name in COUNTED}
    assert found == {name: getattr(response.statistics, name) for name in COUNTED}


@pytest.mark.parametrize("ends_at", [10_000, 30])
async def test_a_replay_is_the_live_response_under_every_rule_that_is_served(
    model: Path, ends_at: int
) -> None:
    rescued, responses = 0, set()
    async with collecting(model, ends_at) as collector:
        for ids in PROMPTS[:2]:
            prompt = RecordedPrompt(ids)
            for rule in (each for each in candidates() if each.name in SERVED):
                replayed = await asyncio.to_thread(collector.complete, prompt, rule)
                assert_equal(replayed, await asyncio.to_thread(live, collector, prompt, rule))
                assert replayed is not None
                rescued += replayed.statistics.rescued
                responses.add(replayed.ids)
    assert rescued and len(responses) > 3


@pytest.mark.parametrize("length", [7, 15])
async def test_a_preset_of_the_deployment_decides_as_its_replay(model: Path, length: int) -> None:
    rule = next(each for each in candidates() if each.name == "gap 0.7, window 2")
    prompt = RecordedPrompt(PROMPTS[0])
    speculation = SpeculationParams(mode=Mode.FLY, preset="careful", reproducible_drafts=True)
    config = {"presets": {"careful": rule.preset()}, "draft_length": {"max": length}}
    async with collecting(model, speculation=config) as collector:
        assert collector.client is not None
        replayed = await asyncio.to_thread(collector.complete, prompt, rule)
        response = await asyncio.to_thread(collector.client.generate, prompt.ids, LENGTH, None, speculation)
        deployment = await asyncio.to_thread(collector.client.info)
    assert_equal(replayed, response)
    assert "careful" in deployment.presets and response.statistics.rescued


async def test_recorded_rules_are_replayed_without_a_deployment(model: Path) -> None:
    exact, *others = [each for each in candidates() if each.name in ("exact", "budget 1", "window 3")]
    async with collecting(model) as collector:
        prompt = RecordedPrompt(PROMPTS[0])
        found = {rule: await asyncio.to_thread(collector.complete, prompt, rule) for rule in (exact, *others)}
    offline = replace(collector, client=None)
    assert {rule: offline.complete(prompt, rule) for rule in found} == found
    assert offline.complete(RecordedPrompt(PROMPTS[1]), exact) is None


async def test_exact_is_recorded_by_one_request_and_is_the_plain_response(model: Path) -> None:
    async with collecting(model) as collector:
        assert collector.client is not None
        prompt = RecordedPrompt(PROMPTS[0])
        exact = await asyncio.to_thread(collector.complete, prompt, candidates()[0])
        plain = await asyncio.to_thread(
            collector.client.generate, prompt.ids, LENGTH, None, SpeculationParams(mode=Mode.PLAIN)
        )
        text = await asyncio.to_thread(collector.text, prompt, exact.ids)
    assert exact is not None and exact.ids == tuple(token.id for token in plain.tokens)
    assert exact.divergence == 0 and text == plain.text
    assert len(prompt.rounds) == exact.statistics.rounds


async def test_a_budget_is_never_overdrawn_and_an_empty_one_is_exact(model: Path) -> None:
    exact, default = candidates()[0], Candidate("often", OFTEN)
    async with collecting(model) as collector:
        prompt = RecordedPrompt(PROMPTS[0])
        spent = {}
        for budget in (0.0, 2.5, math.inf):
            rule = Candidate(f"budget {budget}", default.rule, Gates(budget=budget))
            found = await asyncio.to_thread(collector.complete, prompt, rule)
            assert found is not None and found.divergence <= budget
            spent[budget] = found
        plain = await asyncio.to_thread(collector.complete, prompt, exact)
        free = await asyncio.to_thread(collector.complete, prompt, default)
    assert plain is not None and free is not None
    assert spent[0.0].ids == plain.ids and spent[math.inf].ids == free.ids
    assert spent[0.0].divergence == 0 < spent[2.5].divergence < free.divergence


async def test_a_cap_and_a_rank_are_kept_in_every_round(model: Path) -> None:
    default = Candidate("often", OFTEN)
    async with collecting(model) as collector:
        prompt = RecordedPrompt(PROMPTS[0])
        capped = Candidate("capped", default.rule, Gates(max_rescues=1))
        ranked = Candidate("ranked", default.rule, Gates(max_rank=1))
        free, one, none = [
            await asyncio.to_thread(collector.complete, prompt, rule) for rule in (default, capped, ranked)
        ]
    assert free is not None and one is not None and none is not None
    assert none.statistics.rescued == 0 < one.statistics.rescued <= one.statistics.rounds
    assert one.statistics.rescued < free.statistics.rescued
    assert all(token.verdict is not Verdict.RESCUED for token in none.tokens)


class FullDrafter(FakeDrafter):
    """A drafter without a place."""

    @asynccontextmanager
    async def session(self, opening: Open) -> AsyncIterator[Any]:
        raise Overloaded("0 sequences are open", 60.0)
        yield


async def test_a_round_without_its_draft_is_not_recorded(model: Path) -> None:
    prompt = RecordedPrompt(PROMPTS[0])
    async with collecting(model, drafter=FullDrafter(HashModel())) as collector:
        with pytest.raises(FlyServeError, match="could not be recorded"):
            await asyncio.to_thread(collector.complete, prompt, candidates()[0])
    assert not prompt.rounds


async def test_the_recording_is_written_after_the_tokens_and_after_each_rule(model: Path) -> None:
    rules, written = [each for each in candidates() if each.name in ("exact", "official", "no gate")], []
    async with collecting(model) as collector:
        recording = Recording(collector.pair)
        save = lambda: written.append(recording.size)  # noqa: E731
        calibrated = calibration(collector, recording, "the quick", "brown fox", save=save)
        rows = await asyncio.to_thread(calibrated.run, rules, ["official", "no gate"], 1)
    assert written[0] == 2 and len(written) == 1 + len(rows) == 4
    assert written == sorted(set(written)) and written[-1] == recording.size


TEMPLATE = (
    "{% if 'brown' in messages[0].content %}{{ raise_exception('no brown') }}{% endif %}"
    "the {{ messages[0].content }}"
)


async def test_prompts_are_tokenized_as_in_the_recording_or_refused(model: Path, tmp_path: Path) -> None:
    (template := tmp_path / "chat.jinja").write_text(TEMPLATE)
    async with collecting(model) as collector:
        recording = Recording(collector.pair)
        await asyncio.to_thread(calibration(collector, recording, "quick").run, candidates()[:1], (), 1)
    async with collecting(model, chat_template=template) as collector:
        again = calibration(collector, recording, "quick").run
        with pytest.raises(ConfigError, match="p:1: has other tokens now than in the recording"):
            await asyncio.to_thread(again, candidates()[:1], (), 1)
        rejected = calibration(collector, Recording(collector.pair), "quick", "brown").run
        with pytest.raises(ConfigError, match=r"p:2: messages are rejected by .* template: no brown"):
            await asyncio.to_thread(rejected, candidates()[:1], (), 1)


def calibration(
    collector: Collector, recording: Recording, *prompts: str, save: Save = lambda: None
) -> Calibration:
    given = [Prompt(f"p:{place}", text) for place, text in enumerate(prompts, 1)]
    return Calibration(collector, recording, given, Judge(), Console(file=io.StringIO()), save)


TEXT = "the quick brown fox"


@pytest.mark.parametrize("target_context", [26, 512])
async def test_a_response_that_just_fits_the_drafter_is_recorded(model: Path, target_context: int) -> None:
    rules = [each for each in candidates() if each.name in ("exact", "flyserve", "no gate")]
    async with collecting(model) as collector:
        num_tokens = len(await asyncio.to_thread(collector.tokenize, Prompt("p:1", TEXT)))
    context = min(num_tokens + LENGTH, target_context)
    drafter = FakeDrafter(HashModel(agreement=0.75, context_length=context))
    async with collecting(model, drafter=drafter, context_length=target_context) as collector:
        run = calibration(collector, Recording(collector.pair), TEXT).run
        rows = await asyncio.to_thread(run, rules, [each.name for each in rules[1:]], 1)
    assert len(rows) == len(rules)


async def test_a_prompt_without_room_in_the_drafter_is_named_before_any_round(model: Path) -> None:
    drafter = FakeDrafter(HashModel(context_length=LENGTH))
    async with collecting(model, drafter=drafter) as collector:
        recording = Recording(collector.pair)
        with pytest.raises(ConfigError, match=r"p:1: .* exceeds the drafter's context of 40"):
            await asyncio.to_thread(calibration(collector, recording, TEXT).run, candidates(), (), 1)
    assert not any(each.rounds for each in recording.prompts.values())


async def test_what_a_recording_lacks_is_named(model: Path) -> None:
    rules = [each for each in candidates() if each.name in ("exact", "official", "no gate")]
    async with collecting(model) as collector:
        recorded = calibration(collector, Recording(collector.pair), TEXT)
        await asyncio.to_thread(recorded.run, rules[:2], ["official"], 1)
    console = Console(file=(shown := io.StringIO()), width=300)
    offline = replace(recorded, collector=replace(collector, client=None), console=console)
    rows = offline.run(rules, ["official", "no gate"], 1)
    assert [each.candidate.name for each in rows] == ["exact", "official"]
    assert "left out, not recorded (run once without --offline): 'no gate'" in shown.getvalue()
    judged = replace(offline, prompts=[Prompt("p:1", TEXT, "an answer")])
    end = f"response by exact to p:1 with --max-new-tokens {collector.max_new_tokens}: run once"
    with pytest.raises(ConfigError, match=f"lacks the text of the {end}"):
        judged.run(rules, (), 1)
    with pytest.raises(ConfigError, match=f"lacks the {end}"):
        replace(offline, recording=Recording(collector.pair, {TEXT: RecordedPrompt((1,))})).run(rules, (), 1)
