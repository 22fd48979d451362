"""The order of measuring: every prompt under every setting by turns, and second passes beside first ones."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from benchmarks.acceleration.runs import Run
from benchmarks.prompts import Prompts
from flyserve.bench.comparison import rotated
from flyserve.bench.progress import Advance

_WARM_UPS = 2

FIRST, SECOND = "first pass", "second pass"
FIRST_ALONE, SECOND_ALONE = "first pass, off", "second pass, off"


class Ask(Protocol):
    """Sends one prompt under one setting."""

    def run(self, prompt: Sequence[int], number: int, repetition: int, cache_salt: str) -> Run:
        """The prompt's number and how often it came before are kept with what is measured."""


def measure_settings(
    asks: Mapping[str, Ask],
    prompts: Prompts,
    repetitions: int,
    salt: str,
    is_remembered: bool,
    advance: Advance,
) -> dict[str, list[Run]]:
    """Every prompt under every setting, after a warm-up, in an order that rotates.

    Args:
        asks: By the setting's name.
        prompts: At least one.
        repetitions: Of every prompt under every setting.
        salt: That nobody has used before; no setting gets the same cache salt as another.
        is_remembered: All prompts of a setting have one cache salt; else each has its own.
        advance: Called after each request; there are `num_requests`.
    """
    for number, prompt in enumerate(prompts[:_WARM_UPS]):
        for name, ask in asks.items():
            ask.run(prompt, number, 0, f"{salt}/warm-up/{name}")
            advance()
    runs: dict[str, list[Run]] = {name: [] for name in asks}
    for turn in range(repetitions * len(prompts)):
        repetition, number = divmod(turn, len(prompts))
        for name in rotated(tuple(asks), turn):
            own = f"{salt}/{name}" if is_remembered else f"{salt}/{name}/{turn}"
            runs[name].append(asks[name].run(prompts[number], number, repetition, own))
            advance()
    return runs


def num_requests(num_settings: int, num_prompts: int, repetitions: int) -> int:
    """Of `measure_settings`."""
    return num_settings * (min(_WARM_UPS, num_prompts) + repetitions * num_prompts)


def measure_passes(
    helped: Ask, alone: Ask, prompts: Prompts, num_control: int, passes: int, salt: str, advance: Advance
) -> dict[str, list[Run]]:
    """Second passes over the same prompts, each beside the first pass of the next cache salt.

    In turn n a prompt is asked with salt n, whose memory knows only the prompts before it, and with salt
    n - 1, whose memory has seen all of them in turn n - 1: both passes of a pair are measured at one time.

    Args:
        helped: With a sub-drafter that remembers.
        alone: Without one: what a second pass gains from caches of the prompts.
        prompts: Of one pass.
        num_control: First prompts that are asked without a sub-drafter as well.
        passes: Second passes, at least one.
        salt: That nobody has used before.
        advance: Called after each prompt of a turn; there are `num_pass_prompts`.
    """
    runs: dict[str, list[Run]] = {name: [] for name in (FIRST, SECOND, FIRST_ALONE, SECOND_ALONE)}
    for turn in range(passes + 1):
        for number, prompt in enumerate(prompts):
            asked = [(FIRST, helped, f"{salt}/{turn}"), (SECOND, helped, f"{salt}/{turn - 1}")]
            if number < num_control:
                asked += [(FIRST_ALONE, alone, f"{salt}/{turn}"), (SECOND_ALONE, alone, f"{salt}/{turn - 1}")]
            for name, ask, own in rotated(asked, turn + number):
                if turn == 0 and name in (SECOND, SECOND_ALONE):
                    continue
                run = ask.run(prompt, number, turn - 1, own)
                if turn:
                    runs[name].append(run)
            advance()
    return runs


def num_pass_prompts(num_prompts: int, passes: int) -> int:
    """Of `measure_passes`."""
    return num_prompts * (passes + 1)
