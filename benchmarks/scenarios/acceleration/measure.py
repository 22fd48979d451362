"""The parts: every prompt under every setting in turn, second passes next to first ones."""

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from benchmarks.harness.client import PLAIN, Prompts, demo_prompts, generate, random_prompts, speculation
from benchmarks.harness.command import Context
from benchmarks.harness.runs import Run, Runs, measure_settings, sender
from benchmarks.harness.system import (
    BUILD,
    DEMO_MODELS,
    Flags,
    model_flags,
    running_fleets,
    simulated_flags,
    sub_drafter_command,
)
from benchmarks.scenarios.acceleration.passes import measure_passes, num_pass_prompts
from benchmarks.scenarios.acceleration.plan import (
    AGREEMENT,
    AHEAD,
    BASELINE,
    DEMO,
    DEMO_DRAFTER,
    DEMO_TARGET,
    DRAFT_LENGTH,
    DRAFTER_S,
    ENDLESS,
    ENDLESS_S,
    FLY,
    FREE,
    LOOKUP,
    LOOKUP_ENGINES,
    MEMORY,
    NON_REPEATING,
    OWN,
    PASSES,
    PERIOD,
    PREDICTED,
    REAL_VOCABULARY,
    RECIPE,
    REPEATING,
    SUFFIX,
    TARGET_S,
    VOCABULARY,
    WHOLE_RESPONSE,
    Plan,
    Setting,
    ahead_name,
    grid,
    lookup_settings,
    mapped,
    real_models,
)
from benchmarks.scenarios.acceleration.predictions import predictions
from fly.grammar import Grammar, GrammarKind
from fly.request import SamplingParams
from fly.types import Mode
from flyserve.bench.progress import progress_bar
from flyserve.bench.tasks import load_tasks, render
from flyserve.client import Client
from router.text.tokenizer import Tokenizer

EACH, TIER = "a memory for each drafter", "one memory for all"
FREE_DRAFTS, ASKED = "free drafts", "without free drafts"
HELPERS = {engine: sub_drafter_command(engine) for engine in LOOKUP_ENGINES}
_NO_END = SamplingParams(ignore_eos=True)
_NUMBER = re.compile(r"\b\d+\b")
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
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))


def _measure(
    plan: Plan,
    context: Context,
    label: str,
    clients: Mapping[str, Client],
    settings: Mapping[str, Setting],
    prompts: Prompts,
    max_new_tokens: int,
    repeat: int = 1,
    is_remembered: bool = True,
    **options: Any,
) -> Runs:
    sends = {
        name: sender(clients[each.fleet], each.way, max_new_tokens, **options)
        for name, each in settings.items()
    }
    interleave = partial(context.interleave, label)
    return measure_settings(sends, prompts, repeat * plan.repeat, is_remembered, interleave)


def _demo(plan: Plan, context: Context) -> Runs:
    fleets, settings = grid(DEMO_DRAFTER)
    with running_fleets(DEMO_TARGET, fleets, HELPERS) as clients:
        return _measure(
            plan, context, DEMO, clients, settings, demo_prompts(plan.demo_prompts), WHOLE_RESPONSE
        )


def _aligned(part: str, plan: Plan, context: Context) -> Runs:
    """Measure every setting; those of text that never repeats share nothing between prompts."""
    from benchmarks.aligned_pair.folders import ensure_pair

    recipe = replace(RECIPE, period=PERIOD) if part == REPEATING else RECIPE
    folders = ensure_pair(recipe, BUILD / f"aligned-{recipe.period or 'endless'}")
    fleets, settings = grid(model_flags(folders.drafter, "float32"))
    target = ("services.target", *model_flags(folders.target, "bfloat16"))
    config = {name: {"model": str(folders.target)} for name in fleets}
    prompts = random_prompts(range(recipe.vocab_size), plan.aligned_prompts)
    with running_fleets(target, fleets, HELPERS, config) as clients:
        remembers = part == REPEATING
        return _measure(
            plan, context, part, clients, settings, prompts, plan.aligned_tokens, is_remembered=remembers
        )


def _passes(plan: Plan, context: Context) -> Runs:
    prompts, fleets = demo_prompts(plan.pass_prompts), grid(DEMO_DRAFTER)[0]
    used = {name: fleets[name] for name in (SUFFIX, BASELINE)}
    with (
        running_fleets(DEMO_TARGET, used, HELPERS) as clients,
        progress_bar(context.console, num_pass_prompts(len(prompts), plan.passes), "passes") as advance,
    ):
        helped, alone = (sender(clients[name], FLY, WHOLE_RESPONSE) for name in used)
        return measure_passes(helped, alone, prompts, plan.control_prompts, plan.passes, advance)


def _predicted(plan: Plan, context: Context) -> Runs:
    """Measure predictions beside none; each setting has a cache of responses of its own."""
    prompts, fleets = demo_prompts(plan.predicted_prompts), grid(DEMO_DRAFTER)[0]
    with running_fleets(DEMO_TARGET, {SUFFIX: fleets[SUFFIX]}, HELPERS) as clients:
        client = clients[SUFFIX]
        texts = [generate(client, prompt, WHOLE_RESPONSE, PLAIN)[0].text for prompt in prompts]
        sends = {
            name: sender(client, FLY, WHOLE_RESPONSE, prediction=list(given))
            for name, given in predictions(texts).items()
        }
        return measure_settings(sends, prompts, plan.repeat, True, partial(context.interleave, PREDICTED))


def _simulated(base_s: float, vocab_size: int, **parameters: Any) -> Flags:
    costs = {"vocab_size": vocab_size, "per_token_s": 0.0, "per_token_above_s": 0.0}
    return simulated_flags({"base_s": base_s, **costs, **parameters}, 8, 8192)


def _ahead(plan: Plan, context: Context) -> Runs:
    """Measure drafting ahead and not, with simulated engines and every draft length, in mode exact."""
    vocab, places = 1024, ("off", "on")
    drafter = ("services.drafter", *_simulated(DRAFTER_S, vocab, agreement=AGREEMENT), "--draft-ahead")
    fleets = {place: [(*drafter, place)] for place in places}
    settings = {
        ahead_name(length, place == "on"): Setting(place, speculation(Mode.EXACT, length))
        for length in plan.ahead_lengths
        for place in places
    }
    prompts, tokens = random_prompts(range(vocab), plan.simulated_prompts), plan.simulated_tokens
    with running_fleets(("services.target", *_simulated(TARGET_S, vocab)), fleets) as clients:
        return _measure(
            plan,
            context,
            AHEAD,
            clients,
            settings,
            prompts,
            tokens,
            is_remembered=False,
            sampling=_NO_END,
        )


def _lookup(part: str, plan: Plan, context: Context) -> Runs:
    """Send problems twice without a draft model; or let a simulated target continue without repetitions."""
    fleets = {
        engine: [("services.lookup", "--role", "drafter", "--engine", engine)] for engine in LOOKUP_ENGINES
    }
    vocab, tokens = 4096, plan.simulated_tokens
    endless = ("services.target", *_simulated(ENDLESS_S, vocab, response_tokens=[tokens] * 2))
    with running_fleets(DEMO_TARGET if part == LOOKUP else endless, fleets) as clients:
        given = plan, context, part, clients, lookup_settings()
        if part == LOOKUP:
            return _measure(*given, demo_prompts(plan.demo_prompts), WHOLE_RESPONSE, repeat=2)
        return _measure(*given, random_prompts(range(16, vocab), 3 * plan.simulated_prompts), tokens)


def edited(problem: str, step: int) -> str:
    """Return the problem with another first number; one without a number of its own is asked again."""
    return _NUMBER.sub(lambda found: str(int(found[0]) + step), problem, count=1)


def _memory(plan: Plan, context: Context) -> Runs:
    """Send the requests of agents' loops, step by step: one memory for all drafters, or one each."""
    problems, salt = [render(task.prompt) for task in load_tasks(plan.agents)], uuid4().hex
    helpers = {f"memory-{number}": sub_drafter_command("suffix") for number in range(plan.drafters + 1)}
    drafter = ("services.drafter", *DEMO_DRAFTER, "--draft-ahead", "off", "--sub-drafter")
    own, shared = list(helpers)[1:], [next(iter(helpers))] * plan.drafters
    fleets = {EACH: [(*drafter, each) for each in own], TIER: [(*drafter, each) for each in shared]}
    with running_fleets(DEMO_TARGET, fleets, helpers) as clients, ThreadPoolExecutor(plan.at_once) as pool:

        def send(name: str, turn: int) -> list[Run]:
            step, used = max(0, turn), f"{salt}/{name}/{'' if turn >= 0 else 'warm-up'}"

            def ask(number: int) -> Run:
                prompt = edited(problems[number], step)
                response, seconds = generate(clients[name], prompt, WHOLE_RESPONSE, FLY, used)
                return Run(number, step, seconds, response.statistics)

            return list(pool.map(ask, range(plan.agents if turn >= 0 else min(plan.agents, plan.at_once))))

        found = context.interleave("steps of loops", tuple(fleets), plan.steps, send)
    return {name: [run for step in steps for run in step] for name, steps in found.items()}


def _vocabulary(plan: Plan, context: Context) -> Runs:
    """Measure the drafter of another vocabulary beside the target's own one, in mode exact."""
    foreign = mapped(DEMO_MODELS / "foreign_drafter", DEMO_MODELS / "target", "float32")
    fleets = {OWN: [("services.drafter", *DEMO_DRAFTER)], "another, text": [foreign]}
    exact = speculation(Mode.EXACT, DRAFT_LENGTH)
    settings = {"plain": Setting(OWN, PLAIN), **{name: Setting(name, exact) for name in fleets}}
    prompts = demo_prompts(plan.demo_prompts)
    with running_fleets(DEMO_TARGET, fleets) as clients:
        return _measure(
            plan, context, VOCABULARY, clients, settings, prompts, WHOLE_RESPONSE, is_remembered=False
        )


def _real_vocabulary(plan: Plan, context: Context) -> Runs:
    """Measure Gemma 3 270M with SmolLM2-135M as its drafter."""
    from demo.real.texts import BEGINNINGS

    target, drafter = real_models()
    tokenizer, name = Tokenizer.load(target), "text"
    modes = {"exact": Mode.EXACT, "FLy": Mode.FLY}
    settings = {key: Setting(name, speculation(mode, plan.real_length)) for key, mode in modes.items()}
    prompts = tuple(tokenizer.encode(text) for text in BEGINNINGS[: plan.demo_prompts])
    fleets, config = {name: [mapped(drafter, target, "bfloat16")]}, {name: {"model": str(target)}}
    with running_fleets(
        ("services.target", *model_flags(target, "bfloat16")), fleets, config=config
    ) as clients:
        return _measure(
            plan,
            context,
            REAL_VOCABULARY,
            clients,
            {"plain": Setting(name, PLAIN), **settings},
            prompts,
            plan.real_tokens,
            is_remembered=False,
        )


def _free(plan: Plan, context: Context) -> Runs:
    """Answer problems by the schema, through a router with free drafts and one without."""
    config: dict[str, dict[str, Any]] = {ASKED: {"limits": {"forced_characters": 0}}, FREE_DRAFTS: {}}
    fleets = {name: [("services.drafter", *DEMO_DRAFTER)] for name in config}
    settings = {name: Setting(name, FLY) for name in config}
    prompts = demo_prompts(plan.demo_prompts)
    with running_fleets(DEMO_TARGET, fleets, config=config) as clients:
        return _measure(plan, context, FREE, clients, settings, prompts, 256, grammar=GRAMMAR)


MEASURES: Mapping[str, Callable[[Plan, Context], Runs]] = {
    DEMO: _demo,
    PASSES: _passes,
    PREDICTED: _predicted,
    REPEATING: partial(_aligned, REPEATING),
    NON_REPEATING: partial(_aligned, NON_REPEATING),
    AHEAD: _ahead,
    LOOKUP: partial(_lookup, LOOKUP),
    ENDLESS: partial(_lookup, ENDLESS),
    MEMORY: _memory,
    VOCABULARY: _vocabulary,
    REAL_VOCABULARY: _real_vocabulary,
    FREE: _free,
}
"""The parts of timed responses by name, in the order in which they are measured."""
