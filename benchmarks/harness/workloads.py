"""Real traffic: prompts of published packages, and the verifiers of their responses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.client import Prompts
from benchmarks.harness.command import Context
from benchmarks.harness.program import Program, named_python, running
from benchmarks.harness.system import ROOT
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer

VARIABLE = "WORKLOADS_PYTHON"
_MADE = ROOT / ".venv-workloads" / "bin" / "python"
_SOURCE = Path(__file__).with_name("workload_source.py")
AGENTS = "agents"
WORKLOADS = ("chat", "code", AGENTS, "reasoning")
_TRACES = 32
Judge = Callable[[int, str], bool | None]


class Workload(NamedTuple):
    """Prompts of one kind.

    Attributes:
        judge: Function from the number of a prompt and the text of a response: True if it is right, None if
            nothing verifies it.
    """

    prompts: Prompts
    judge: Judge


@contextmanager
def workload_source(context: Context, script: Path = _SOURCE) -> Iterator[Program | None]:
    """Yield the program that has the packages; None, with a line on the terminal, if they are not here.

    Raises:
        ConfigError: The variable `WORKLOADS_PYTHON` names no program.
    """
    python = named_python(VARIABLE) or (str(_MADE) if _MADE.exists() else None)
    if python is None:
        context.leave_out(f"real traffic: its packages are not here: `make workloads` or {VARIABLE}")
        yield None
    else:
        with running(python, script) as program:
            yield program


def draw(source: Program, part: str, model: Path, count: int, most_tokens: int) -> Workload:
    """Return `count` prompts of a part, as tokens of a model; those of agents have at most `most_tokens`.

    Raises:
        NotReady: The source cannot answer.
    """
    items: list[dict[str, Any]] = source.ask(part=part, count=_TRACES if part == AGENTS else count)
    render = renderer(model)
    if part == AGENTS:
        prompts = requests([each["messages"] for each in items], render, count, most_tokens)
    else:
        prompts = tuple(map(render, items))
    return Workload(prompts, lambda number, text: source.ask(part=part, number=number, judge=text))


def renderer(model: Path) -> Callable[[Mapping[str, Any]], tuple[int, ...]]:
    """Return a function from an item to tokens; a model without a chat template reads a dialogue."""
    tokenizer = Tokenizer.load(model)
    template = ChatTemplate(tokenizer)

    def render(item: Mapping[str, Any]) -> tuple[int, ...]:
        if "text" in item:
            return tokenizer.encode(item["text"])
        messages = item["messages"]
        if template.is_present:
            return template.render(messages, {})
        lines = [f"{each['role'].title()}: {each['content']}" for each in messages]
        return tokenizer.encode("\n\n".join([*lines, "Assistant:"]))

    return render


def requests(
    traces: Sequence[Sequence[Mapping[str, Any]]],
    render: Callable[[Mapping[str, Any]], tuple[int, ...]],
    count: int,
    most_tokens: int,
) -> Prompts:
    """Return the first requests of agents' traces, each of which continues the one before it.

    Traces with most requests come first; one whose second request is too long is left out.
    """
    found = list[list[tuple[int, ...]]]()
    for trace in traces:
        steps = list[tuple[int, ...]]()
        for end, message in enumerate(trace, 1):
            if message["role"] == "user":
                prompt = render({"messages": trace[:end]})
                if len(prompt) > most_tokens:
                    break
                steps.append(prompt)
        found.append(steps)
    longest_first = sorted((steps for steps in found if len(steps) > 1), key=len, reverse=True)
    return tuple(prompt for steps in longest_first for prompt in steps)[:count]
