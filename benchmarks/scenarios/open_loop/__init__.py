"""Requests that arrive at shares of the capacity, sent and judged by NVIDIA's AIPerf (about 25 minutes)."""

from functools import partial

from benchmarks.harness.command import Context
from benchmarks.harness.deployed import demo_with_room, deployed
from benchmarks.harness.report import Report
from benchmarks.scenarios.open_loop.aiperf import Aiperf, Run, aiperf_program, served_model
from benchmarks.scenarios.open_loop.arrivals import Load, arrivals
from benchmarks.scenarios.open_loop.plan import BASELINE, SETTINGS, Plan, Runs
from benchmarks.scenarios.open_loop.report import make_report
from router.config import HttpConfig

__all__ = ["Plan", "run"]


def run(plan: Plan, context: Context) -> Report:
    """Measure the capacity, then every load; the settings in turn."""
    program, found = aiperf_program(), dict[str, Runs]()
    demo = demo_with_room(plan.places, HttpConfig(speculation_metrics=True))
    with deployed(demo, "the demo's services", context.verbose) as running:
        url = running.http_url or ""
        client = Aiperf(program, url, served_model(url), plan.promise)
        capacity = context.parts.measure("capacity", Runs, partial(_measure_capacity, client, plan, context))
        base = max(each.requests_per_s for each in capacity[BASELINE])
        for load in plan.loads:
            measure = partial(_measure_load, client, load, load.share * base, plan, context)
            found[load.name] = context.parts.measure(load.name.replace(" ", "-"), Runs, measure)
    return make_report(plan, context.machine, capacity, found)


def _measure_capacity(client: Aiperf, plan: Plan, context: Context) -> Runs:
    def send(setting: str, _turn: int) -> Run:
        return client.keep_open(SETTINGS[setting], plan.callers, plan.capacity_requests)

    return context.interleave("capacity", tuple(SETTINGS), plan.repeat, send, warm_ups=0)


def _measure_load(client: Aiperf, load: Load, rate: float, plan: Plan, context: Context) -> Runs:
    def send(setting: str, turn: int) -> Run:
        return client.follow(SETTINGS[setting], arrivals(load, rate, plan.seconds, seed=turn))

    return context.interleave(load.name, tuple(SETTINGS), plan.repeat, send, warm_ups=0)
