"""Traces: a small program over three variables, executed aloud one statement at a time."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from demo.corpus.types import Family, Problem, Style
from demo.corpus.wording import VARIABLES, Wording

_MAX_VALUE = 99
_State = dict[str, int]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement's source, what it reads (`a 4 and b 17`) and the assignments that it leads to."""

    source: str
    reads: str
    writes: tuple[tuple[str, int], ...]


def trace(rng: random.Random, num_statements: int, style: Style) -> Problem:
    """Draw a program of three assignments and `num_statements` statements; values stay within 0 and 99."""
    names = rng.sample(VARIABLES, 3)
    start = {name: rng.randint(1, 40) for name in names}
    state = dict(start)
    statements = [_draw_statement(rng, state) for _ in range(num_statements)]
    answer = ", ".join(f"{name} {state[name]}" for name in names)
    source = "; ".join([*(f"{k} {v}" for k, v in start.items()), *(s.source for s in statements)])
    prompt = _ask(source, Wording(rng, Style()))
    response = f"{_run(statements, Wording(rng, style))} Answer: {answer}"
    return Problem(Family.TRACE, prompt, response, answer, source)


def _draw_statement(rng: random.Random, state: _State) -> _Statement:
    """Draw a statement that keeps every value in range, and apply it to `state`."""
    while True:
        target, other = rng.sample(list(state), 2)
        statement = rng.choice(_DRAWS)(rng, state, target, other)
        if all(0 <= value <= _MAX_VALUE for _, value in statement.writes):
            state.update(statement.writes)
            return statement


def _constant(rng: random.Random, state: _State, target: str, _other: str) -> _Statement:
    sign, amount = rng.choice("+-"), rng.randint(2, 29)
    value = state[target] + amount if sign == "+" else state[target] - amount
    return _Statement(f"{target} {sign}= {amount}", f"{target} {state[target]}", ((target, value),))


def _combine(rng: random.Random, state: _State, target: str, other: str) -> _Statement:
    sign = rng.choice("+-")
    value = state[target] + state[other] if sign == "+" else state[target] - state[other]
    return _Statement(f"{target} {sign}= {other}", _both(state, target, other), ((target, value),))


def _double(_rng: random.Random, state: _State, target: str, _other: str) -> _Statement:
    return _Statement(f"{target} *= 2", f"{target} {state[target]}", ((target, state[target] * 2),))


def _copy(_rng: random.Random, state: _State, target: str, other: str) -> _Statement:
    return _Statement(f"{target} = {other}", f"{other} {state[other]}", ((target, state[other]),))


def _swap(_rng: random.Random, state: _State, target: str, other: str) -> _Statement:
    writes = ((target, state[other]), (other, state[target]))
    return _Statement(f"swap {target} {other}", _both(state, target, other), writes)


def _maximum(_rng: random.Random, state: _State, target: str, other: str) -> _Statement:
    value = max(state[target], state[other])
    return _Statement(f"{target} = max {target} {other}", _both(state, target, other), ((target, value),))


def _both(state: _State, target: str, other: str) -> str:
    return f"{target} {state[target]} and {other} {state[other]}"


_DRAWS: tuple[Callable[[random.Random, _State, str, str], _Statement], ...] = (
    _constant, _constant, _combine, _combine, _double, _copy, _swap, _maximum,
)  # fmt: skip


def _ask(source: str, wording: Wording) -> str:
    request = wording.pick(
        ("Run this program", "Trace this code", "Execute these lines", "Follow the program")
    )
    question = wording.pick(("and give the final values", "and list all variables at the end"))
    return f"{request} {question}: {source}."


def _run(statements: list[_Statement], wording: Wording) -> str:
    sentences = []
    for statement in statements:
        opener = wording.pick(("Now we run", "The program does", "Next comes", "Here it says"))
        joint = wording.pick(("so it stores", "which leaves", "and we obtain", "giving us"))
        writes = " and ".join(f"{name} {value}" for name, value in statement.writes)
        sentences.append(f"{opener} {statement.source} with {statement.reads}, {joint} {writes}.")
    ending = wording.pick(("The program is over.", "Nothing else is left.", "All lines are done."))
    return " ".join([*sentences, ending])
