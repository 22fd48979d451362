"""Soak test: half an hour of mixed load with clients that leave, stall and err; checks that nothing grows."""

import asyncio
import time
from collections.abc import Callable

from benchmarks.harness.command import Context
from benchmarks.harness.load import every
from benchmarks.harness.report import Report
from benchmarks.scenarios.soak.clients import Clients
from benchmarks.scenarios.soak.report import Run, Sample, grown, growth, make_report
from benchmarks.scenarios.soak.requests import Plan
from benchmarks.scenarios.soak.system import REPLACED, System, running

__all__ = ["Plan", "run"]

_REST_SAMPLES, _REST_POLL_S = 5, 0.5


def run(plan: Plan, context: Context) -> Report:
    """Run the load; the report has faults if a request failed or a figure grew."""
    found = asyncio.run(measure(plan, context.say))
    report = make_report(context.machine, plan, found)
    # NOTE: a warm-up of seconds is too short to open all that is used again.
    report.faults = [*found.faults, *([] if context.is_quick else grown(growth(found)))]
    return report


async def measure(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Run:
    """Run the plan; `say` gets a line at the start of each phase."""
    with running(plan.write_timeout_s) as system:

        async def replace() -> None:
            await asyncio.to_thread(system.replace, REPLACED)

        say(f"the warm-up, for {plan.warm_up_s:g} s")
        warming = Clients(system.addresses, plan)
        async with every(plan.replace_s, replace):
            await warming.send_for(plan.warm_up_s)
        before = await _at_rest(system, plan)
        say(f"the load, for {plan.load_s:g} s")
        clients, counted = Clients(system.addresses, plan), system.outcomes()
        loaded, began_s = list[Sample](), time.monotonic()

        async def sample() -> None:
            loaded.extend(await _sample(system, began_s))

        async with every(plan.sample_s, sample), every(plan.replace_s, replace):
            await clients.send_for(plan.load_s)
        say("the rest")
        after = await _at_rest(system, plan)
        since = {name: number - counted.get(name, 0) for name, number in system.outcomes().items()}
        return Run(
            before=before,
            loaded=[sample for sample in loaded if sample.at_s <= plan.load_s],
            after=after,
            outcomes=clients.outcomes_by_behaviour(),
            counted=since,
            faults=[*warming.faults, *clients.faults, *system.internal_errors()],
        )


async def _at_rest(system: System, plan: Plan) -> list[Sample]:
    """Return samples once nothing is open any more, or when the time for that has passed."""
    end_s = time.monotonic() + plan.rest_s
    while any(sample.open for sample in await _sample(system, 0.0)) and time.monotonic() < end_s:
        await asyncio.sleep(_REST_POLL_S)
    samples: list[Sample] = []
    for _ in range(_REST_SAMPLES):
        await asyncio.sleep(_REST_POLL_S)
        samples += await _sample(system, 0.0)
    return samples


async def _sample(system: System, began_s: float) -> list[Sample]:
    return await asyncio.to_thread(lambda: list(system.sample(began_s)))
