"""A client of a target on vLLM, without a network."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fly.messages import Extend, Open, Verification, VerifyStep
from fly.sequence import SequenceMirror, TokenSequence
from services.engine.vllm.engine import VllmEngine
from services.target.vllm import VllmTarget
from tests.unit.engine.vllm.vllm_stand_in import hash_logprobs

PROMPT = list(range(3, 43))


class Client:
    """The client's side of one sequence."""

    def __init__(self, session: Any, prompt: list[int]) -> None:
        self.sequence, self._mirror, self._session = TokenSequence(prompt), SequenceMirror(), session

    async def verify(self, *drafts: int) -> Verification:
        update = self._mirror.update(self.sequence, drafts, len(self.sequence))
        return await self._session.step(VerifyStep(update, len(drafts)))

    async def extend(self, max_tokens: int) -> Verification:
        update = self._mirror.update(self.sequence, (), len(self.sequence))
        answer = await self._session.step(Extend(update, max_tokens))
        self._mirror.append(answer.choices)
        self.sequence.extend(answer.choices)
        return answer


@asynccontextmanager
async def opened(engine: VllmEngine, prompt: list[int] | None = None, **fields: Any) -> AsyncIterator[Client]:
    """Open a sequence."""
    tokens = PROMPT if prompt is None else prompt
    async with VllmTarget(engine).open(Open("r", len(tokens), **fields)) as session:
        yield Client(session, tokens)


def greedy(prompt: list[int], count: int) -> list[int]:
    """Return what the stand-in's model decodes."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(hash_logprobs(tokens).argmax()))
    return tokens[len(prompt) :]
