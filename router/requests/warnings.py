"""Warnings about a request that is served, but not as its client may expect."""

from collections.abc import Iterator

from flyserve.core.presets import can_rescue
from flyserve.core.request import GenerateRequest, SamplingParams
from flyserve.core.types import Coupling, Mode, TailPolicy
from router.requests.planning import SpeculationPlan


def request_warnings(request: GenerateRequest, plan: SpeculationPlan) -> Iterator[str]:
    """Yield a warning for every parameter that has no effect in combination with the others."""
    yield from _on_mode(request, plan)
    if plan.mode is Mode.FLY and plan.drafts:
        yield from _on_windows(request, plan)
    if request.grammar is not None and request.speculation.guard_excluded is False:
        yield _without_effect("speculation", ["guard_excluded"], "with a grammar: it is always true")
    yield from _on_sampling(request.sampling, request.n, plan.mode)


def _on_mode(request: GenerateRequest, plan: SpeculationPlan) -> Iterator[str]:
    given, idle = request.speculation, list[str]()
    if plan.mode is not Mode.FLY:
        idle += [name for name in ("preset", "exact_in") if getattr(given, name)]
        idle += given.changes
    if plan.mode in (Mode.PLAIN, Mode.DRAFT) and given.draft_length.max:
        idle.append("draft_length.max")
    if idle:
        yield _without_effect("speculation", idle, f"in mode {plan.mode.value}")


def _on_windows(request: GenerateRequest, plan: SpeculationPlan) -> Iterator[str]:
    rule = plan.rule
    if not can_rescue(rule, plan.draft_length):
        needed = f"a window of {rule.window} does not fit into drafts of {plan.draft_length}"
        yield f"no mismatch can be accepted: {needed} tokens"
    elif rule.tail is TailPolicy.CARRY and rule.carry_after >= rule.window:
        yield f"no window is carried: {rule.carry_after} matches already fill a window of {rule.window}"
    if rule.tail is TailPolicy.REJECT and request.speculation.carry_after is not None:
        yield _without_effect("speculation", ["carry_after"], "with tail reject")


def _on_sampling(sampling: SamplingParams, choices: int, mode: Mode) -> Iterator[str]:
    if sampling.temperature > 0:
        if mode is Mode.DRAFT and sampling.coupling is not Coupling.SHARED_NOISE:
            yield _without_effect("sampling", ["coupling"], "in mode draft")
        return
    given = {
        "top_k": sampling.top_k > 0,
        "top_p": sampling.top_p < 1,
        "min_p": sampling.min_p > 0,
        "coupling": sampling.coupling is not Coupling.SHARED_NOISE,
    }
    if idle := [name for name, is_given in given.items() if is_given]:
        yield _without_effect("sampling", idle, "at temperature 0")
    if choices > 1:
        yield f"n is {choices}, but at temperature 0 all choices are equal"


def _without_effect(group: str, names: list[str], where: str) -> str:
    listed = ", ".join(f"{group}.{name}" for name in names)
    return f"{listed} {'has' if len(names) == 1 else 'have'} no effect {where}"
