"""Requests that arrive at shares of the capacity, sent and judged by NVIDIA's AIPerf (25 minutes)."""

from benchmarks.harness.command import Context
from benchmarks.harness.deployed import demo_with_room, deployed
from benchmarks.harness.report import Report
from benchmarks.scenarios.open_loop.aiperf import Aiperf, Export, aiperf_program
from benchmarks.scenarios.open_loop.plan import BASELINE, SETTINGS, Plan, Runs
from benchmarks.scenarios.open_loop.report import make_report
from router.config import HttpConfig

__all__ = ["Plan", "run"]


def run(plan: Plan, context: Context) -> Report:
    """Measure the capacity, then every load; the settings in turn."""
    program, found = aiperf_program(), dict[str, Runs]()
    demo = demo_with_room(plan.places, HttpConfig(speculation_metrics=True))
    with deployed(demo, "the demo's services", context.verbose) as running:
        client = Aiperf(program, running.http_url or "", plan.first_ms, plan.token_ms)

        def measure(name: str, count: int, *flags: str, warm_ups: int = 0) -> Runs:
            def send(setting: str, turn: int) -> Export:
                return client.run(SETTINGS[setting], count, 1 + turn, *flags)

            return context.interleave(name, tuple(SETTINGS), plan.repeat, send, warm_ups)

        at_once = ("--concurrency", str(plan.callers))
        capacity = measure("capacity", plan.capacity_requests, *at_once, warm_ups=1)
        base = max(each["request_throughput"]["avg"] for each in capacity[BASELINE])
        for load in plan.loads:
            rate = load.share * base
            count, pattern = max(2, round(rate * plan.seconds)), ["--arrival-pattern", "poisson"]
            if load.smoothness != 1:
                pattern = ["--arrival-pattern", "gamma", "--arrival-smoothness", f"{load.smoothness:g}"]
            found[load.name] = measure(load.name, count, "--request-rate", f"{rate:.3f}", *pattern)
    return make_report(plan, context.machine, capacity, found)
