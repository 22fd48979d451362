"""The costs of a pair's forwards: measured on this machine, or by the roofline of a GPU."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks.harness.command import Context
from benchmarks.scenarios.outcomes.ceiling import Costs
from benchmarks.scenarios.outcomes.plan import TITLES, Plan
from benchmarks.scenarios.outcomes.record import Pair
from benchmarks.scenarios.peers.in_process import open_side
from benchmarks.scenarios.simulate.plan import Plan as SimulatePlan
from fly.messages import Open
from fly.request import SamplingParams
from services.engine.base import ForwardInput, KvSlot, Runner


def simulated_costs(plan: Plan) -> Costs:
    """Return the costs of Llama 70B and 8B of the scenario `simulate`."""
    models = SimulatePlan().models
    target, drafter = models.target_model, models.drafter_model
    return Costs(
        f"{models.target.model.name} on {models.target.num_gpus} GPUs, {models.drafter.model.name} on"
        f" {models.drafter.num_gpus}, simulated",
        {number: drafter.forward_s(number, number) for number in sizes(plan)},
        {length: target.forward_s(1, length + 1) for length in plan.draft_lengths},
    )


def sizes(plan: Plan) -> tuple[int, ...]:
    """Return the numbers of sequences of the drafter's forwards."""
    return tuple(sorted({1, *plan.branches}))


def measure_costs(pair: Pair, plan: Plan, context: Context) -> Costs:
    """Measure every forward in turn; the fastest counts, which other work on the machine disturbs least."""
    with _forwards(pair.drafter, plan, max(plan.branches)) as draft, _forwards(pair.target, plan, 1) as check:
        ways = {f"drafter-{number}": partial(draft, number, 1) for number in sizes(plan)}
        ways |= {f"target-{length}": partial(check, 1, length + 1) for length in plan.draft_lengths}

        def measure(name: str, turn: int) -> float:
            started = time.perf_counter()
            ways[name]()
            return time.perf_counter() - started

        found = context.interleave(f"{pair.name}, forwards", tuple(ways), plan.repeat, measure)
    return Costs(
        f"{TITLES[pair.name]}, measured",
        {number: min(found[f"drafter-{number}"]) for number in sizes(plan)},
        {length: min(found[f"target-{length}"]) for length in plan.draft_lengths},
    )


@contextmanager
def _forwards(runner: Runner, plan: Plan, num_slots: int) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that computes one forward of some sequences with some rows each."""
    context = plan.context_tokens
    opening = Open("outcomes", 1)
    with ExitStack() as stack:
        sides = [
            stack.enter_context(open_side(runner, context + max(plan.draft_lengths) + 1, opening))
            for _ in range(num_slots)
        ]
        slots = [side.sequence.slot for side in sides]
        for slot in slots:
            runner.forward([_item(slot, 0, [1] * context, 0)])

        def forward(num_sequences: int, num_rows: int) -> None:
            runner.forward([_item(slot, context, [1] * num_rows, num_rows) for slot in slots[:num_sequences]])

        yield forward


def _item(slot: KvSlot, start: int, tokens: Sequence[int], num_outputs: int) -> ForwardInput:
    return ForwardInput(
        slot=slot,
        start=start,
        tokens=tokens,
        num_outputs=num_outputs,
        sampling=SamplingParams(),
        prompt_length=1,
        history=[1] * (start + len(tokens)),
    )
