"""Rounds without drafts in which the target decodes several tokens by itself."""

from pathlib import Path
from typing import Any

from flyserve.core.messages import Extend, Load, Open, StepTimes, Verification, VerifyStep
from flyserve.v1.generation_pb2 import VERDICT_PLAIN as PLAIN_TOKEN
from tests.contract.fakes import EOS, FakeDrafter, FakeTarget, HashModel, dies_at, held
from tests.contract.router_rig import EXACT, PLAIN, Answer, ids, joined, running
from tests.contract.scripted import LoggingTarget

LONG_S = 10.0
"""An interval in which a target without costs decodes any number of tokens."""


async def both(model: Path, hashes: HashModel, max_new_tokens: int, **fields: Any) -> tuple[Answer, Answer]:
    """Return the responses with one token per step, and with several."""
    found = []
    for interval_s in (0.0, LONG_S):
        async with running(model, [LoggingTarget(hashes)], stream_interval_s=interval_s) as rig:
            found.append(await rig.generate(PLAIN, max_new_tokens, **fields))
    single, several = found
    assert several.statistics.rounds < single.statistics.rounds
    assert [str(token) for token in several.tokens] == [str(token) for token in single.tokens]
    assert (several.text, several.finish_reason) == (single.text, single.finish_reason)
    assert several.statistics.emitted == single.statistics.emitted == len(several.tokens)
    return single, several


def numbers_of_tokens(target: LoggingTarget) -> list[int]:
    """Return the most tokens of each step without drafts."""
    return [step.max_tokens for step in target.asked if isinstance(step, Extend)]


async def test_the_number_of_tokens_doubles_within_the_interval(model: Path) -> None:
    target = LoggingTarget(HashModel())
    async with running(model, [target], stream_interval_s=LONG_S) as rig:
        chunks = await rig.stream(PLAIN, 100)
    assert numbers_of_tokens(target) == [1, 2, 4, 8, 16, 32, 37]
    assert [len(chunk.tokens) for chunk in chunks] == [1, 2, 4, 8, 16, 32, 37], "each step is one chunk"
    assert chunks[-1].statistics.rounds == len(target.asked) == 7
    assert target.updates.is_true_to([40, 41, 42, 43, *joined(chunks)])


async def test_several_tokens_per_step_are_the_same_tokens(model: Path) -> None:
    await both(model, HashModel(), 60)
    await both(model, HashModel(), 60, logprobs=2)


async def test_a_response_ends_within_a_step(model: Path) -> None:
    single, _ = await both(model, HashModel(ends_at=37), 60)
    assert ids(single)[-1] == EOS
    text = (await both(model, HashModel(), 60))[0].text
    await both(model, HashModel(), 60, stop=[text[len(text) // 2 :][:6]])


async def test_a_draft_comes_after_tokens_that_were_decoded_without_one(model: Path) -> None:
    expected = (await both(model, HashModel(), 60))[0]
    drafter = FakeDrafter(HashModel(agreement=0.9), context_length=30)
    target = LoggingTarget(HashModel())
    async with running(model, [target], [drafter], stream_interval_s=LONG_S) as rig:
        response = await rig.generate(EXACT, 60)
    assert ids(response) == ids(expected)
    assert response.statistics.drafted
    assert any(isinstance(step, Extend) for step in target.asked), "beyond the drafter's context"


async def test_a_target_that_is_lost_within_a_step_is_replaced(model: Path) -> None:
    expected = (await both(model, HashModel(), 60))[0]
    targets = [FakeTarget(HashModel()) for _ in range(2)]
    dies_at(targets[0], 3)
    async with running(model, targets, stream_interval_s=LONG_S, balancing="round_robin") as rig:
        responses = [await rig.generate(PLAIN, 60) for _ in range(2)]
    assert [ids(response) for response in responses] == [ids(expected)] * 2
    assert sum(response.statistics.replays for response in responses) == 1


def have_entropies(response: Answer) -> set[tuple[bool, bool]]:
    """Return whether tokens are plain, with whether these have an entropy."""
    return {(token.verdict == PLAIN_TOKEN, token.HasField("entropy")) for token in response.tokens}


async def test_plain_tokens_have_entropies_if_log_probabilities_were_requested(model: Path) -> None:
    async with running(model, [LoggingTarget(HashModel())], [FakeDrafter(HashModel())]) as rig:
        plain = await rig.generate(PLAIN, 12)
        with_logprobs = await rig.generate(PLAIN, 12, logprobs=0)
        exact = await rig.generate(EXACT, 12)
        exact_with_logprobs = await rig.generate(EXACT, 12, logprobs=0)
    assert ids(plain) == ids(with_logprobs) == ids(exact)
    assert have_entropies(plain) == {(True, False)}
    assert have_entropies(with_logprobs) == {(True, True)}
    assert have_entropies(exact) == {(True, False), (False, True)}
    assert have_entropies(exact_with_logprobs) == {(True, True), (False, True)}


class Terse(FakeTarget):
    """Sends entropies or none, whatever the messages say."""

    def __init__(self, omits: bool) -> None:
        super().__init__(HashModel())
        self._omits = omits

    def omits_entropies(self, opening: Open, step: VerifyStep | Extend) -> bool:
        return self._omits


async def test_a_target_that_sends_entropies_unasked_is_accepted(model: Path) -> None:
    async with running(model, [Terse(omits=False)]) as rig:
        assert have_entropies(await rig.generate(PLAIN, 8)) == {(True, False)}


async def test_a_target_that_omits_needed_entropies_is_left_for_another(model: Path) -> None:
    targets, drafter = [Terse(omits=True), FakeTarget(HashModel())], FakeDrafter(HashModel())
    async with running(model, targets, [drafter]) as rig:
        responses = [await rig.generate(EXACT, 8) for _ in range(2)]
    assert all(have_entropies(response) == {(True, False), (False, True)} for response in responses)


async def test_a_response_that_nobody_streams_is_decoded_in_longer_steps(model: Path) -> None:
    class Slow(LoggingTarget):
        """Reports forwards of 20 ms per token."""

        def answer(self, known: Any, opening: Open, step: Any) -> Verification:
            answer = super().answer(known, opening, step)
            return answer._replace(times=StepTimes(0, 20_000_000 * len(answer.choices), 1))

    target = Slow(HashModel())
    async with running(model, [target], stream_interval_s=0.05) as rig:
        whole = await rig.generate(PLAIN, 60)
        longest = numbers_of_tokens(target)
        target.asked.clear()
        await rig.generate(PLAIN, 60, stop=["never"])
        chunks = await rig.stream(PLAIN, 60)
    assert longest == [1, 2, 4, 8, 16, 25, 4] and len(whole.tokens) == 60
    assert {len(chunk.tokens) for chunk in chunks} == {1}
    assert numbers_of_tokens(target) == [1] * 120


async def test_a_late_draft_that_is_not_wanted_any_more_shortens_no_step(
    model: Path,
) -> None:
    """Without this, a response whose target has become busy decodes token by token to its end."""
    target, drafter = LoggingTarget(HashModel()), FakeDrafter(HashModel())
    gate = held(drafter)

    async def becomes_busy(number: int) -> None:
        target.reported = Load(sequences=3 if number >= 2 else 2)

    target.script = becomes_busy
    limited = {"draft_length": {"max_sequences": 2}}
    async with running(
        model, [target], [drafter], stream_interval_s=LONG_S, draft_patience=0.0, speculation=limited
    ) as rig:
        response = await rig.generate(EXACT, 60)
        gate.set()
    assert len(response.tokens) == 60 and numbers_of_tokens(target)[3:6] == [2, 4, 8]
