"""The order of measuring: every prompt under every setting in turn, second passes next to first ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import uuid4

from benchmarks.harness.client import PLAIN, Prompts, demo_prompts, generate, random_prompts, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.load import Interleave
from benchmarks.scenarios.acceleration.predictions import predictions
from benchmarks.scenarios.acceleration.workloads import (
    AHEAD,
    BASELINE,
    DEMO,
    DRAFTINGS,
    NON_REPEATING,
    PASSES,
    PREDICTED,
    REPEATING,
    SETTINGS,
    SUFFIX,
    VOCABULARY,
    WHOLE_RESPONSE,
    Drafting,
    SubDrafting,
    ahead_name,
    aligned_models,
    aligned_recipe,
    demo_models,
    running_drafters,
    simulated_models,
)
from fly.request import SpeculationParams
from fly.response import Statistics
from fly.types import Mode
from flyserve.bench.comparison import rotated
from flyserve.bench.progress import Advance, progress_bar
from flyserve.client import Client

_WARM_UPS = 2
FIRST, SECOND = "first pass", "second pass"
FIRST_ALONE, SECOND_ALONE = "first pass, off", "second pass, off"


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        repeat: Repetitions of every prompt under every setting.
        demo_prompts: Problems that the demo pair answers under every setting.
        aligned_prompts: Prompts that each of the aligned pairs continues under every setting.
        aligned_tokens: New tokens of each.
        passes: Second passes, each compared with a first pass at the same time.
        pass_prompts: Problems of a pass.
        control_prompts: The first of these problems, which are also passed without a sub-drafter.
        predicted_prompts: Problems whose responses are predicted.
        ahead_pairs: Responses of the simulated engines under every setting.
        ahead_tokens: New tokens of each.
        ahead_lengths: Draft lengths; the best one counts, with drafting ahead and without.
    """

    repeat: int = 1
    demo_prompts: Annotated[int, Quick(4)] = 60
    aligned_prompts: Annotated[int, Quick(2)] = 12
    aligned_tokens: Annotated[int, Quick(64)] = 192
    passes: Annotated[int, Quick(1)] = 7
    pass_prompts: Annotated[int, Quick(4)] = 100
    control_prompts: Annotated[int, Quick(1)] = 20
    predicted_prompts: Annotated[int, Quick(2)] = 200
    ahead_pairs: Annotated[int, Quick(2)] = 7
    ahead_tokens: Annotated[int, Quick(64)] = 192
    ahead_lengths: Annotated[tuple[int, ...], Quick((8,))] = (4, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class Run:
    """One response.

    Attributes:
        prompt: Number of the prompt.
        repetition: Number of earlier responses to the prompt.
        seconds: Time from the call to the whole response, as the client sees it.
        statistics: Statistics as the server reports them.
    """

    prompt: int
    repetition: int
    seconds: float
    statistics: Statistics

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second."""
        return self.statistics.emitted / self.seconds


Runs = dict[str, list[Run]]
"""Runs by setting; all settings have the same prompts and repetitions, in one order."""
Send = Callable[[Sequence[int], int, int, str], Run]
"""Sends a prompt, with its number, the repetition and a cache salt."""


def sender(client: Client, way: SpeculationParams, max_new_tokens: int, ignore_eos: bool = False) -> Send:
    """Return a function that sends a prompt with greedy decoding."""

    def send(prompt: Sequence[int], number: int, repetition: int, cache_salt: str) -> Run:
        response, seconds = generate(client, prompt, max_new_tokens, way, cache_salt, ignore_eos=ignore_eos)
        return Run(number, repetition, seconds, response.statistics)

    return send


def measure_settings(
    sends: Mapping[str, Send],
    prompts: Prompts,
    repeat: int,
    is_remembered: bool,
    interleave: Interleave[str, Run],
) -> Runs:
    """Send every prompt under every setting, after a warm-up, in an order that rotates.

    Args:
        sends: By the setting's name.
        prompts: At least one.
        repeat: Repetitions of every prompt under every setting.
        is_remembered: All prompts of a setting share one cache salt; otherwise each has its own.
        interleave: Order of measuring.
    """
    salt = uuid4().hex

    def measure(name: str, turn: int) -> Run:
        repetition, number = divmod(turn if turn >= 0 else -1 - turn, len(prompts))
        own = f"{salt}/{name}" if is_remembered else f"{salt}/{name}/{turn}"
        salted = own if turn >= 0 else f"{salt}/warm-up/{name}"
        return sends[name](prompts[number], number, repetition, salted)

    return interleave(tuple(sends), repeat * len(prompts), measure, min(_WARM_UPS, len(prompts)))


def measure_passes(
    helped: Send, alone: Send, prompts: Prompts, num_control: int, passes: int, advance: Advance
) -> Runs:
    """Measure second passes over the same prompts, each next to the first pass of the next cache salt.

    In turn n a prompt is sent with salt n, whose cache has only the prompts before it, and with salt n - 1,
    whose cache has all of them from turn n - 1. So both passes of a pair are measured at one time.

    Args:
        helped: With a sub-drafter that caches responses.
        alone: Without one: the gain of a second pass by caches of the prompts.
        prompts: Prompts of one pass.
        num_control: First prompts that are also sent without a sub-drafter.
        passes: Second passes, at least one.
        advance: Called after each prompt of a turn; there are `num_pass_prompts`.
    """
    salt, runs = uuid4().hex, Runs({name: [] for name in (FIRST, SECOND, FIRST_ALONE, SECOND_ALONE)})
    for turn in range(passes + 1):
        for number, prompt in enumerate(prompts):
            sends = [(FIRST, helped, turn), (SECOND, helped, turn - 1)]
            if number < num_control:
                sends += [(FIRST_ALONE, alone, turn), (SECOND_ALONE, alone, turn - 1)]
            for name, send, salt_number in rotated(sends, turn + number):
                if salt_number < 0:
                    continue
                run = send(prompt, number, turn - 1, f"{salt}/{salt_number}")
                if turn:
                    runs[name].append(run)
            advance()
    return runs


def num_pass_prompts(num_prompts: int, passes: int) -> int:
    """Return the number of prompts of `measure_passes`."""
    return num_prompts * (passes + 1)


def _run_workload(name: str, plan: Plan, context: Context) -> Runs:
    """Measure every setting; those of text that never repeats share nothing between prompts."""
    if name == DEMO:
        models, prompts, limit = demo_models(), demo_prompts(plan.demo_prompts), WHOLE_RESPONSE
    else:
        recipe, limit = aligned_recipe(name), plan.aligned_tokens
        models = aligned_models(recipe)
        prompts = random_prompts(range(recipe.vocab_size), plan.aligned_prompts)
    with running_drafters(models, DRAFTINGS) as clients:
        sends = {each.name: sender(clients[each.drafting], each.speculation, limit) for each in SETTINGS}
        interleave = partial(context.interleave, name)
        return measure_settings(sends, prompts, plan.repeat, name != NON_REPEATING, interleave)


def _run_passes(plan: Plan, context: Context) -> Runs:
    prompts = demo_prompts(plan.pass_prompts)
    with (
        running_drafters(demo_models(), (SUFFIX.drafting, BASELINE.drafting)) as clients,
        progress_bar(context.console, num_pass_prompts(len(prompts), plan.passes), "passes") as advance,
    ):
        helped, alone = (
            sender(clients[setting.drafting], setting.speculation, WHOLE_RESPONSE)
            for setting in (SUFFIX, BASELINE)
        )
        return measure_passes(helped, alone, prompts, plan.control_prompts, plan.passes, advance)


def _run_predicted(plan: Plan, context: Context) -> Runs:
    """Measure predictions beside none; each setting has a cache of responses of its own."""
    prompts, way = demo_prompts(plan.predicted_prompts), SUFFIX.speculation
    with running_drafters(demo_models(), (SUFFIX.drafting,)) as clients:
        client = clients[SUFFIX.drafting]
        texts = [generate(client, prompt, WHOLE_RESPONSE, PLAIN)[0].text for prompt in prompts]

        def sender_of(given: Sequence[str]) -> Send:
            def send(prompt: Sequence[int], number: int, repetition: int, salt: str) -> Run:
                response, seconds = generate(
                    client, prompt, WHOLE_RESPONSE, way, salt, prediction=given[number]
                )
                return Run(number, repetition, seconds, response.statistics)

            return send

        sends = {name: sender_of(given) for name, given in predictions(texts).items()}
        return measure_settings(sends, prompts, plan.repeat, True, partial(context.interleave, PREDICTED))


def _run_ahead(plan: Plan, context: Context) -> Runs:
    """Measure drafting ahead and not, with simulated engines and every draft length, in mode exact."""
    draftings = tuple(Drafting(SubDrafting.OFF, is_ahead) for is_ahead in (False, True))
    prompts = random_prompts(range(VOCABULARY), plan.ahead_pairs)
    with running_drafters(simulated_models(), draftings) as clients:
        sends = {
            ahead_name(length, way.is_ahead): sender(
                clients[way], speculation(Mode.EXACT, length), plan.ahead_tokens, ignore_eos=True
            )
            for length in plan.ahead_lengths
            for way in draftings
        }
        return measure_settings(
            sends, prompts, plan.repeat, False, partial(context.interleave, "drafting ahead")
        )


PARTS: Mapping[str, Callable[[Plan, Context], Runs]] = {
    DEMO: partial(_run_workload, DEMO),
    PASSES: _run_passes,
    PREDICTED: _run_predicted,
    REPEATING: partial(_run_workload, REPEATING),
    NON_REPEATING: partial(_run_workload, NON_REPEATING),
    AHEAD: _run_ahead,
}
"""The parts by name, in the order in which they are measured."""
