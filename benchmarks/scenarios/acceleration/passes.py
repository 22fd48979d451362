"""Second passes over the same prompts, each next to a first pass."""

from uuid import uuid4

from benchmarks.harness.client import Prompts
from benchmarks.harness.runs import Runs, Send
from flyserve.bench.comparison import rotated
from flyserve.bench.progress import Advance

FIRST, SECOND = "first pass", "second pass"
FIRST_ALONE, SECOND_ALONE = "first pass, off", "second pass, off"


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
