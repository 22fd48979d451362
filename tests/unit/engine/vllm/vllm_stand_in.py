"""A stand-in for vLLM's `AsyncLLM`: a small hash model or recorded exchanges, a prefix cache, and faults."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fly.messages import ModelInfo, Role
from services.engine.vllm.client import VllmClient
from services.engine.vllm.engine import VllmEngine
from services.engine.vllm.library import Library
from services.engine.vllm.rows import ROWS_KEY, last_rows
from services.engine.vllm.watch import EngineStats
from tools.record_vllm import RECORDING, describe_request, request_key

BLOCK = 32
VOCAB_SIZE = 64
STANDS_IN = Library(
    engine_class=None,
    arguments_class=None,
    params_class=lambda **fields: SimpleNamespace(**fields),
    final_only="final",
    delta="delta",
    device="cpu",
)


def hash_logprobs(tokens: Sequence[int]) -> Any:
    """Return the log-probabilities after some tokens, (VOCAB_SIZE,), float32."""
    logits = np.random.default_rng([*tokens[-3:], len(tokens)]).normal(scale=2.0, size=VOCAB_SIZE)
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def row_after(tokens: Sequence[int], following: int, width: int) -> tuple[list[int], list[float]]:
    """Return the row of a position as vLLM has it: the token that follows, then the most likely ones."""
    logprobs = hash_logprobs(tokens)
    ids = [following, *np.argsort(-logprobs, kind="stable")[: width - 1].tolist()]
    return ids, [float(logprobs[token]) for token in ids]


@dataclass
class StandIn:
    """Serves scoring and decoding requests of a hash model.

    Attributes:
        requests: All requests: token ids and parameters.
        serves_scored_rows: The prefix cache serves rows although their scores are wanted.
        gate: If given, requests wait for it.
        error: If given, requests raise it.
        pace: If given, each part of a stream after the first waits for it.
        num_streamed: Tokens that the latest stream has sent.
        shutdowns: Number of calls of `shutdown`.
    """

    requests: list[tuple[list[int], Any]] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    serves_scored_rows: bool = False
    gate: asyncio.Event | None = None
    error: Exception | None = None
    pace: asyncio.Event | None = None
    num_streamed: int = 0
    num_running: int = 0
    shutdowns: int = 0
    cached: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)

    async def generate(
        self, prompt: dict[str, Any], params: Any, name: str, priority: int = 0
    ) -> AsyncIterator[Any]:
        tokens, salt = prompt["prompt_token_ids"], prompt.get("cache_salt", "")
        self.requests.append((tokens, params))
        self.priorities.append(priority)
        self.num_running += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.error is not None:
                raise self.error
            whole = self.answer(tokens, params, salt)
            if params.output_kind == STANDS_IN.final_only:
                yield whole
                return
            completion, logprobs = whole.outputs[0], whole.outputs[0].logprobs
            count, start = len(completion.token_ids), 0
            for end in [*range(1, count, params.stream_interval), count]:
                ids = completion.token_ids[start:end]
                part = SimpleNamespace(token_ids=ids, logprobs=logprobs and logprobs[start:end])
                self.num_streamed, start, finished = end, end, end == count
                yield SimpleNamespace(**{**vars(whole), "outputs": [part], "finished": finished})
                if self.pace is not None and not finished:
                    await self.pace.wait()
        finally:
            self.num_running -= 1

    def shutdown(self, timeout: float | None = None) -> None:
        self.shutdowns += 1

    def answer(self, tokens: list[int], params: Any, salt: str) -> Any:
        num_cached = self._num_cached(tokens, params, salt)
        decoded, rows = [], []
        while len(decoded) < params.max_tokens and not (decoded and decoded[-1] in params.stop_token_ids):
            before = [*tokens, *decoded]
            decoded.append(int(hash_logprobs(before).argmax()))
            rows.append(row_after(before, decoded[-1], 1 + (params.logprobs or 0)))
        self._remember([*tokens, *decoded[:-1]], salt)
        scored = None
        if params.prompt_logprobs is not None:
            scored = [
                row_after(tokens[: i + 1], tokens[i + 1], 1 + params.prompt_logprobs)
                for i in range(len(tokens) - 1)
            ]
        return output(params, num_cached, decoded, rows, scored)

    def _num_cached(self, tokens: list[int], params: Any, salt: str) -> int:
        if params.skip_reading_prefix_cache:
            return 0
        limit = len(tokens) - 1
        if not self.serves_scored_rows:
            limit -= params.extra_args[ROWS_KEY]
        hit = 0
        while hit + BLOCK <= limit and (salt, tuple(tokens[: hit + BLOCK])) in self.cached:
            hit += BLOCK
        return hit

    def _remember(self, tokens: list[int], salt: str) -> None:
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            self.cached.add((salt, tuple(tokens[:end])))


def output(
    params: Any,
    num_cached: int,
    decoded: list[int],
    rows: Sequence[tuple[list[int], list[float]]],
    scored: Sequence[tuple[list[int], list[float]]] | None,
) -> Any:
    """Return vLLM's final output after its front end was trimmed; rows from the cache hold garbage."""
    prompt_logprobs = None
    if scored is not None:
        ids = np.array([ids for ids, _ in scored], dtype=np.int64)
        logprobs = np.array([logprobs for _, logprobs in scored], dtype=np.float32)
        ids[:num_cached], logprobs[:num_cached] = -1, np.nan
        prompt_logprobs = last_rows(ids, logprobs, params.extra_args[ROWS_KEY], 1 + params.prompt_logprobs)
    sampled = [last_rows(np.array([ids]), np.array([lp]), 1, len(ids)) for ids, lp in rows]
    completion = SimpleNamespace(token_ids=decoded, logprobs=sampled if params.logprobs is not None else None)
    return SimpleNamespace(
        finished=True,
        outputs=[completion],
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=num_cached,
        metrics=SimpleNamespace(queued_ts=1.0, scheduled_ts=1.5, last_token_ts=2.5),
    )


class Replay(StandIn):
    """Answers as the real vLLM once did; a request that was not recorded is an error."""

    def __init__(self, path: Path = RECORDING) -> None:
        super().__init__()
        recording = json.loads(path.read_text(encoding="utf-8"))
        self.version: str = recording["version"]
        self.exchanges = {request_key(each["request"]): each["answer"] for each in recording["exchanges"]}

    def answer(self, tokens: list[int], params: Any, salt: str) -> Any:
        found = self.exchanges[request_key(describe_request(tokens, params))]
        scored = found["scored"]
        if scored is not None:
            width = len(scored[0][0])
            missing = len(tokens) - 1 - len(scored)
            scored = [([-1] * width, [float("nan")] * width)] * missing + scored
        return output(params, found["num_cached"], found["decoded"], found["rows"], scored)


def stand_in_engine(
    llm: Any,
    max_sequences: int = 4,
    max_queued: int = 2,
    role: Role = Role.TARGET,
    vocab_size: int = VOCAB_SIZE,
    timeout_s: float = 60.0,
    max_logprobs: int = 64,
    pids: Sequence[int] = (),
) -> VllmEngine:
    """Return a running engine on a stand-in; must be called in an event loop."""
    info = ModelInfo(
        role, "m", "w-vllm", "LlamaForCausalLM", "", vocab_size, 511, "float32", 1, 4096, "",
        max_sequences=max_sequences, engine="vllm",
    )  # fmt: skip
    stats = EngineStats()
    client = VllmClient(llm, STANDS_IN, stats, timeout_s, pids)
    return VllmEngine(info, client, stats, min(max_logprobs, vocab_size), max_queued)
