"""The order of measuring: every prompt under every setting in turn, second passes next to first ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from benchmarks.harness.client import Prompts, generate
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.harness.load import Interleave
from benchmarks.scenarios.acceleration.workloads import DEMO, WHOLE_RESPONSE, Workload, make_workload
from fly.request import SpeculationParams
from fly.response import Statistics
from flyserve.bench.comparison import rotated
from flyserve.bench.progress import Advance
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
        ahead_pairs: Responses of the simulated engines under every setting.
        ahead_tokens: New tokens of each.
        ahead_lengths: Draft lengths; the best one counts, with drafting ahead and without.
    """

    repeat: int = 1
    demo_prompts: Annotated[int, Quick(4)] = 60
    aligned_prompts: Annotated[int, Quick(2)] = 12
    aligned_tokens: Annotated[int, Quick(64)] = 192
    passes: Annotated[int, Quick(1)] = 7
    pass_prompts: Annotated[int, Quick(10)] = 100
    control_prompts: Annotated[int, Quick(2)] = 20
    ahead_pairs: Annotated[int, Quick(2)] = 7
    ahead_tokens: Annotated[int, Quick(64)] = 192
    ahead_lengths: Annotated[tuple[int, ...], Quick((8,))] = (4, 6, 8, 10)

    def workload(self, part: str) -> Workload:
        """Return the text and the models of a part."""
        if part == DEMO:
            return make_workload(part, self.demo_prompts, WHOLE_RESPONSE)
        return make_workload(part, self.aligned_prompts, self.aligned_tokens)


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


Send = Callable[[Sequence[int], int, int, str], Run]
"""Sends a prompt, with its number, the repetition and a cache salt."""


@dataclass(frozen=True, slots=True)
class Sender:
    """A request without its prompt; call it to send it, with greedy decoding."""

    client: Client
    speculation: SpeculationParams
    max_new_tokens: int
    ignore_eos: bool = False

    def __call__(self, prompt: Sequence[int], number: int, repetition: int, cache_salt: str) -> Run:
        response, seconds = generate(
            self.client, prompt, self.max_new_tokens, self.speculation, cache_salt, ignore_eos=self.ignore_eos
        )
        return Run(number, repetition, seconds, response.statistics)


def measure_settings(
    senders: Mapping[str, Send],
    prompts: Prompts,
    repeat: int,
    salt: str,
    is_remembered: bool,
    interleave: Interleave[str, Run],
) -> dict[str, list[Run]]:
    """Send every prompt under every setting, after a warm-up, in an order that rotates.

    Args:
        senders: By the setting's name.
        prompts: At least one.
        repeat: Repetitions of every prompt under every setting.
        salt: A new one; from it each setting gets its own cache salts.
        is_remembered: All prompts of a setting share one cache salt; otherwise each has its own.
        interleave: Order of measuring.
    """

    def measure(name: str, turn: int) -> Run:
        repetition, number = divmod(turn if turn >= 0 else -1 - turn, len(prompts))
        own = f"{salt}/{name}" if is_remembered else f"{salt}/{name}/{turn}"
        salted = own if turn >= 0 else f"{salt}/warm-up/{name}"
        return senders[name](prompts[number], number, repetition, salted)

    return interleave(tuple(senders), repeat * len(prompts), measure, min(_WARM_UPS, len(prompts)))


def measure_passes(
    helped: Send, alone: Send, prompts: Prompts, num_control: int, passes: int, salt: str, advance: Advance
) -> dict[str, list[Run]]:
    """Measure second passes over the same prompts, each next to the first pass of the next cache salt.

    In turn n a prompt is sent with salt n, whose cache has only the prompts before it, and with salt n - 1,
    whose cache has all of them from turn n - 1. So both passes of a pair are measured at one time.

    Args:
        helped: With a sub-drafter that caches responses.
        alone: Without one: the gain of a second pass by caches of the prompts.
        prompts: Prompts of one pass.
        num_control: First prompts that are also sent without a sub-drafter.
        passes: Second passes, at least one.
        salt: A new one.
        advance: Called after each prompt of a turn; there are `num_pass_prompts`.
    """
    runs: dict[str, list[Run]] = {name: [] for name in (FIRST, SECOND, FIRST_ALONE, SECOND_ALONE)}
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
