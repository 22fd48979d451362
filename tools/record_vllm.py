"""Record exchanges with the real vLLM for the tests' stand-in: `python -m tools.record_vllm [--check]`.

Needs an environment with vLLM (`make test-vllm` makes one). `--check` compares a new recording with the
stored one instead of writing it: the tokens must be the same, log-probabilities may differ by rounding.
"""

import asyncio
import json
import math
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from fly.messages import Extend, Open, Role, Verification, VerifyStep
from fly.request import SamplingParams
from fly.sequence import SequenceMirror, TokenSequence
from flyserve.bench.tasks import load_tasks, render
from services.engine.interface import TargetEngine
from services.engine.vllm.rows import ROWS_KEY

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "demo" / "models" / "target"
RECORDING = ROOT / "tests" / "data" / "vllm_exchanges.json"
TOLERANCE = 1e-3
"""Largest difference of two log-probabilities that is put down to rounding."""

_NUM_TASKS, _RESPONSE, _DRAFT = 2, 20, 6
_WRONG = 5
SAMPLED = SamplingParams(temperature=0.9, top_k=8, seed=11)


def prompts() -> list[list[int]]:
    """Return the token ids of the prompts."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return [tokenizer.encode(render(task.prompt)).ids for task in load_tasks(_NUM_TASKS)]


async def play(target: TargetEngine) -> list[Verification]:
    """Decode each prompt by itself, then with drafts of which some are wrong, then with sampling."""
    answers = []
    for prompt in prompts():
        whole = await _extend(target, prompt)
        answers.append(whole)
        answers += await _verify(target, prompt, whole.choices, SamplingParams())
        answers += await _verify(target, prompt, whole.choices, SAMPLED)
    return answers


async def _extend(target: TargetEngine, prompt: Sequence[int]) -> Verification:
    sequence = TokenSequence(prompt)
    async with target.open(Open("record", len(prompt), num_logprobs=3)) as session:
        update = SequenceMirror().update(sequence, (), len(prompt))
        return await session.step(Extend(update, _RESPONSE))


async def _verify(
    target: TargetEngine, prompt: Sequence[int], response: Sequence[int], sampling: SamplingParams
) -> list[Verification]:
    """Verify the response in drafts; the last token of every other draft is wrong, and rolled back."""
    sequence, mirror, answers = TokenSequence(prompt), SequenceMirror(), list[Verification]()
    async with target.open(Open("record", len(prompt), sampling, num_logprobs=3)) as session:
        for start in range(0, len(response), _DRAFT):
            drafts = list(response[start : start + _DRAFT])
            sent = [*drafts[:-1], _WRONG] if start % (2 * _DRAFT) else drafts
            update = mirror.update(sequence, sent, len(sequence))
            answers.append(await session.step(VerifyStep(update, len(sent))))
            sequence.extend(drafts)
    return answers


class Recorder:
    """Passes requests on to a real `AsyncLLM`, and keeps them with their answers."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self.exchanges: dict[str, dict[str, Any]] = {}

    async def generate(
        self, prompt: dict[str, Any], params: Any, name: str, priority: int
    ) -> AsyncIterator[Any]:
        request = describe_request(prompt["prompt_token_ids"], params)
        async for output in self._llm.generate(prompt, params, name, priority=priority):
            self.exchanges[request_key(request)] = {"request": request, "answer": _describe_answer(output)}
            yield output

    def shutdown(self, timeout: float | None = None) -> None:
        self._llm.shutdown(timeout)


def describe_request(tokens: Sequence[int], params: Any) -> dict[str, Any]:
    """Return what a recording keeps of a request."""
    return {
        "tokens": list(tokens),
        "num_rows": params.extra_args[ROWS_KEY],
        "num_candidates": params.logprobs,
        "max_tokens": params.max_tokens,
        "stop_token_ids": list(params.stop_token_ids),
    }


def request_key(request: dict[str, Any]) -> str:
    """Return the key by which a recorded request is found."""
    return json.dumps(request, sort_keys=True)


def _describe_answer(output: Any) -> dict[str, Any]:
    completion, scored = output.outputs[0], output.prompt_logprobs
    return {
        "num_cached": output.num_cached_tokens,
        "decoded": list(completion.token_ids),
        "rows": [row for rows in completion.logprobs or () for row in _listed(rows)],
        "scored": None if scored is None else _listed(scored),
    }


def _listed(rows: Any) -> list[tuple[list[int], list[float]]]:
    values = [[round(value, 6) for value in row] for row in rows.logprobs.tolist()]
    return list(zip(rows.ids.tolist(), values, strict=True))


async def record() -> dict[str, Any]:
    """Return a recording of the scenario with the real vLLM, on the demo's target in fp32."""
    from services.engine.vllm.engine import start_engine
    from services.target.config import VllmTargetConfig
    from services.target.vllm import VllmTarget

    fields: dict[str, Any] = {"model": MODEL, "dtype": "float32", "max_sequences": 4}
    engine = await start_engine(VllmTargetConfig(role=Role.TARGET, **fields))
    try:
        recorder = engine.client.wrap(Recorder)
        await play(VllmTarget(engine))
    finally:
        await engine.stop()
    return {"version": engine.info.engine_version, "exchanges": list(recorder.exchanges.values())}


def drift(stored: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return the differences of two recordings that rounding does not explain."""
    if stored["version"] != found["version"]:
        return [f"version is {found['version']}, recorded was {stored['version']}"]
    known = {request_key(each["request"]): each["answer"] for each in stored["exchanges"]}
    new = {request_key(each["request"]): each["answer"] for each in found["exchanges"]}
    if known.keys() != new.keys():
        return [f"{len(known.keys() ^ new.keys())} requests are in one recording only"]
    return [f"another answer to {key[:60]}..." for key in known if _differs(known[key], new[key])]


def _differs(known: Any, found: Any) -> bool:
    """Compare two values of JSON; numbers with a fraction may differ by rounding."""
    if isinstance(known, dict):
        return known.keys() != found.keys() or any(_differs(known[key], found[key]) for key in known)
    if isinstance(known, list | tuple):
        pairs = zip(known, found, strict=False)
        return len(known) != len(found) or any(_differs(one, other) for one, other in pairs)
    if isinstance(known, float):
        return not math.isclose(known, found, rel_tol=0.0, abs_tol=TOLERANCE)
    return bool(known != found)


def main() -> None:
    found = json.loads(json.dumps(asyncio.run(record())))
    if "--check" in sys.argv[1:]:
        if faults := drift(json.loads(RECORDING.read_text(encoding="utf-8")), found):
            sys.exit("\n".join(faults))
        print("as recorded")
        return
    RECORDING.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{len(found['exchanges'])} exchanges, {RECORDING.stat().st_size} bytes")


if __name__ == "__main__":
    main()
