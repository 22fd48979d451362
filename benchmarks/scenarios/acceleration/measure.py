"""The parts: every prompt under every setting in turn."""

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any
from uuid import uuid4

from benchmarks.harness.client import PLAIN, demo_prompts, generate, random_prompts, speculation
from benchmarks.harness.command import Context
from benchmarks.harness.runs import Run, Runs, checksum_of, measure_settings, sender
from benchmarks.harness.system import (
    Flags,
    running_fleets,
    simulated_flags,
    sub_drafter_command,
)
from benchmarks.scenarios.acceleration.plan import (
    DEMO_DRAFTER,
    DEMO_TARGET,
    FLY,
    HELPER,
    WHOLE_RESPONSE,
    Bed,
    Plan,
    Setting,
    ahead_name,
    grid,
)
from benchmarks.scenarios.acceleration.predictions import predictions
from flyserve.bench.tasks import load_tasks, render
from flyserve.core.grammar import Grammar, GrammarKind
from flyserve.core.request import SamplingParams
from flyserve.core.types import Mode

AGREEMENT = 0.9
"""Probability that the simulated drafter proposes the target's choice."""
TARGET_S, DRAFTER_S = 0.024, 0.003
"""Seconds of a simulated forward of any size: a draft of 8 takes as long as a verification."""
_NUMBER = re.compile(r"\b\d+\b")
_HELPERS = {HELPER: sub_drafter_command()}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "problem": {"type": "string", "maxLength": 40},
        "operation": {"enum": ["addition", "subtraction", "multiplication", "division"]},
        "needs_more_information": {"type": "boolean"},
        "intermediate_results": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        "final_answer": {"type": "integer"},
    },
    "additionalProperties": False,
}
SCHEMA["required"] = list(SCHEMA["properties"])


def measure_bed(name: str, make: Callable[[Plan], Bed], plan: Plan, context: Context) -> Runs:
    """Measure the settings of a bed."""
    bed = make(plan)
    flags = {flag for drafters in bed.fleets.values() for command in drafters for flag in command}
    helpers = {helper: command for helper, command in _HELPERS.items() if helper in flags}
    with running_fleets(bed.target, bed.fleets, helpers, bed.config) as clients:
        sends = {
            setting: sender(clients[each.fleet], each.way, bed.max_new_tokens, **bed.options)
            for setting, each in bed.settings.items()
        }
        interleave, repeat = partial(context.interleave, name), bed.repeat * plan.repeat
        return measure_settings(sends, bed.prompts, repeat, bed.is_remembered, interleave)


def demo(plan: Plan) -> Bed:
    """Return the demo pair, whose problems are sent twice: the second time caches have the responses."""
    return Bed(*grid(DEMO_DRAFTER), demo_prompts(plan.demo_prompts), repeat=2)


def draft_ahead(plan: Plan) -> Bed:
    """Return simulated engines with drafting ahead and without, at every draft length, in mode exact."""
    vocab = 1024
    drafter = ("services.drafter", *_simulated(DRAFTER_S, vocab, agreement=AGREEMENT), "--draft-ahead")
    return Bed(
        {place: [(*drafter, place)] for place in ("off", "on")},
        {
            ahead_name(length, place == "on"): Setting(place, speculation(Mode.EXACT, length))
            for length, place in product(plan.ahead_lengths, ("off", "on"))
        },
        random_prompts(range(vocab), plan.simulated_prompts),
        plan.simulated_tokens,
        target=("services.target", *_simulated(TARGET_S, vocab)),
        is_remembered=False,
        options={"sampling": SamplingParams(ignore_eos=True)},
    )


def free_drafts(plan: Plan) -> Bed:
    """Return responses by a schema, through a router with free drafts and one without."""
    config: dict[str, dict[str, Any]] = {
        "without free drafts": {"limits": {"forced_characters": 0}},
        "free drafts": {},
    }
    fleets = {name: [DEMO_DRAFTER] for name in config}
    settings = {name: Setting(name, FLY) for name in config}
    options = {"grammar": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))}
    return Bed(fleets, settings, demo_prompts(plan.demo_prompts), 256, config=config, options=options)


def measure_predicted(plan: Plan, context: Context) -> Runs:
    """Measure predictions beside none; each setting has a cache of responses of its own."""
    prompts, drafter = demo_prompts(plan.predicted_prompts), (*DEMO_DRAFTER, "--sub-drafter", HELPER)
    with running_fleets(DEMO_TARGET, {"suffix": [drafter]}, _HELPERS) as clients:
        client = clients["suffix"]
        texts = [generate(client, prompt, WHOLE_RESPONSE, PLAIN)[0].text for prompt in prompts]
        sends = {
            name: sender(client, FLY, WHOLE_RESPONSE, prediction=list(given))
            for name, given in predictions(texts).items()
        }
        return measure_settings(sends, prompts, plan.repeat, True, partial(context.interleave, "predicted"))


def edited(problem: str, step: int) -> str:
    """Return the problem with another first number; one without a number of its own is asked again."""
    return _NUMBER.sub(lambda found: str(int(found[0]) + step), problem, count=1)


def measure_memory(plan: Plan, context: Context) -> Runs:
    """Send the requests of agents' loops, step by step: one memory for all drafters, or one each."""
    problems, salt = [render(task.prompt) for task in load_tasks(plan.agents)], uuid4().hex
    helpers = {f"memory-{number}": sub_drafter_command() for number in range(plan.drafters + 1)}
    shared, *own = helpers
    drafter = (*DEMO_DRAFTER, "--draft-ahead", "off", "--sub-drafter")
    memories = {"a memory for each drafter": own, "one memory for all": [shared] * plan.drafters}
    fleets = {name: [(*drafter, each) for each in used] for name, used in memories.items()}
    with running_fleets(DEMO_TARGET, fleets, helpers) as clients, ThreadPoolExecutor(plan.at_once) as pool:

        def send(name: str, turn: int) -> list[Run]:
            step, used = max(0, turn), f"{salt}/{name}/{'' if turn >= 0 else 'warm-up'}"

            def ask(number: int) -> Run:
                prompt = edited(problems[number], step)
                response, seconds = generate(clients[name], prompt, WHOLE_RESPONSE, FLY, used)
                return Run(number, step, seconds, response.statistics, checksum_of(response))

            return list(pool.map(ask, range(plan.agents if turn >= 0 else min(plan.agents, plan.at_once))))

        found = context.interleave("steps of loops", tuple(fleets), plan.steps, send)
    return {name: [run for step in steps for run in step] for name, steps in found.items()}


_BEDS: Mapping[str, Callable[[Plan], Bed]] = {
    "demo": demo,
    "draft-ahead": draft_ahead,
    "free-drafts": free_drafts,
}
MEASURES: Mapping[str, Callable[[Plan, Context], Runs]] = {
    **{name: partial(measure_bed, name, make) for name, make in _BEDS.items()},
    "predicted": measure_predicted,
    "memory": measure_memory,
}
"""The parts by name, in the order in which they are measured."""


def _simulated(base_s: float, vocab_size: int, **parameters: Any) -> Flags:
    costs = {"vocab_size": vocab_size, "per_token_s": 0.0, "per_token_above_s": 0.0}
    return simulated_flags({"base_s": base_s, **costs, **parameters}, 8, 8192)
