"""A router's CPU time: sampled stacks by part of a request, by package, by function. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OUTSIDE = "event loop, gRPC and its threads (no Python)"
_PARTS: Mapping[str, str] = {
    "router.servicer:GenerationServicer.GenerateStream.<locals>.make_emit": "emit: a chunk to the client",
    "router.generation.generation:make_piece": "text and tokens of a chunk",
    "router.generation.round:propose": "propose: a step to the drafter and back",
    "router.generation.round:verify": "verify: a step to the target and back",
    "router.generation.round:decide": "decide: the rule, detokenizing, counting",
    "router.generation.generation:open_response": "open and close the streams",
    "router.service:GenerationService._prepare": "check a request",
    "router.generation.round:run_round": "a round, what is left of it",
    "router.": "a request, what is left of it",
}
"""Part of a request by prefix: the first prefix that any function of a stack begins with counts."""
_LOOP = ("asyncio.runners:", "asyncio.base_events:")


@dataclass(frozen=True, slots=True)
class Profile:
    """Shares of a router's CPU time, the largest first.

    Attributes:
        cpu_ms: CPU time per emitted token, while it was sampled.
        samples: Number of samples.
        parts: Shares by part of a request.
        packages: Shares by the package of the running function.
        functions: Shares by that function.
    """

    cpu_ms: float
    samples: int
    parts: tuple[tuple[str, float], ...]
    packages: tuple[tuple[str, float], ...]
    functions: tuple[tuple[str, float], ...]


def make_profile(stacks: Sequence[Mapping[str, Any]], cpu_ms: float) -> Profile:
    """Return the profile of stacks, each with its outermost function first and its number of samples."""
    parts, packages, functions = Counter[str](), Counter[str](), Counter[str]()
    for each in stacks:
        stack, seen = each["stack"], each["samples"]
        parts[_part(stack)] += seen
        packages[_package(stack)] += seen
        functions[OUTSIDE if _is_outside(stack) else stack[-1]] += seen
    total = sum(parts.values())
    shares = (
        tuple((name, seen / total) for name, seen in counts.most_common())
        for counts in (parts, packages, functions)
    )
    return Profile(cpu_ms, total, *shares)


def _part(stack: Sequence[str]) -> str:
    if _is_outside(stack):
        return OUTSIDE
    for begin, part in _PARTS.items():
        if any(function.startswith(begin) for function in stack[_entry(stack) :]):
            return part
    return "everything else"


def _package(stack: Sequence[str]) -> str:
    """Return the folder of the project's own modules, and the first name of others."""
    if _is_outside(stack):
        return OUTSIDE
    parts = stack[-1].partition(":")[0].split(".")
    if parts[0] == "<string>":
        return "dataclasses (made functions)"
    return ".".join(parts[:2] if parts[0] in ("services", "router") and len(parts) > 2 else parts[:1])


def _is_outside(stack: Sequence[str]) -> bool:
    return stack[-1].startswith(_LOOP)


def _entry(stack: Sequence[str]) -> int:
    """Return the index of the first function that the event loop calls."""
    loops = [at for at, function in enumerate(stack) if function.startswith(_LOOP)]
    return loops[-1] + 1 if loops else 0
