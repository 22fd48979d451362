"""A hash-based language model, fake target and drafter servers for it, and faults that they can have."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from flyserve.core.messages import (
    Draft,
    DraftStep,
    Extend,
    Load,
    ModelInfo,
    Open,
    Opened,
    Queued,
    Role,
    StepTimes,
    Verification,
    VerifyStep,
)
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import ReplicatedSequence, SequenceUpdate
from flyserve.v1 import drafter_pb2_grpc, target_pb2_grpc
from flyserve.wire.batches import DRAFT, VERIFY, BatchMethod
from flyserve.wire.streams import (
    draft_request_from_wire,
    draft_response_to_wire,
    info_to_wire,
    verify_request_from_wire,
    verify_response_to_wire,
)
from services.common.host import Host, Service
from services.common.shared_stream.server import Send, SharedStreams
from services.common.stream_server import serve_stream

EOS = 0
VOCAB_SIZE = 304
GAP = 0.25
"""Gap of a draft token that is not the choice, in nats."""
_CORPUS = ["the quick brown fox jumps over the lazy dog, 😀 says 你好 to the world. "] * 20


def save_tokenizer(folder: Path, eos_ids: Sequence[int] = (EOS, 1), markers: Sequence[str] = ()) -> Path:
    """Write a byte-level tokenizer of about 300 tokens into a model folder; `markers` are special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<eos>", "<end>", *markers],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": EOS}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(eos_ids)}))
    return folder


@dataclass(frozen=True)
class HashModel:
    """Every token follows from the last three and the position.

    Attributes:
        agreement: Share of positions with the choice that a model with agreement 1 takes.
        ends_at: Position from which the choice is the end of the sequence.
        certain_share: Share of positions with entropy 0; the others have 1 nat.
    """

    agreement: float = 1.0
    ends_at: int = 10_000
    certain_share: float = 0.0
    context_length: int = 512

    def choice(self, ids: Sequence[int], sampling: SamplingParams, prompt_length: int) -> int:
        ended = len(ids) >= self.ends_at and len(ids) - prompt_length >= sampling.min_tokens
        return EOS if ended else self._word(ids)

    def entropy(self, ids: Sequence[int]) -> float:
        return 0.0 if _unit("entropy", ids) < self.certain_share else 1.0

    def _word(self, ids: Sequence[int]) -> int:
        word = 2 + int(_unit("word", ids) * (VOCAB_SIZE - 2))
        if _unit("deviation", ids) < self.agreement:
            return word
        return 2 + (word - 1) % (VOCAB_SIZE - 2)


def _unit(domain: str, ids: Sequence[int]) -> float:
    """Return a number in [0, 1) that is the same in every process."""
    value = len(domain) * 7919 + ord(domain[0])
    for token in (*ids[-3:], len(ids)):
        value = (value * 6364136223846793005 + token + 1442695040888963407) % (1 << 64)
        value ^= value >> 29
    return value / (1 << 64)


Script = Callable[[int], Awaitable[Any]]
"""Called with the number of the step over all streams, from 1; None lets the server answer correctly."""


async def _no_fault(step: int) -> None:
    return None


def dies_at(service: "FakeService", step: int) -> None:
    """Let a service die in a step."""

    async def script(number: int) -> None:
        if number == step:
            await service.die()

    service.script = script


def answers_at(service: "FakeService", steps: Container[int], answer: Any) -> None:
    """Let a service give this answer in some steps."""

    async def script(number: int) -> Any:
        return answer if number in steps else None

    service.script = script


def held(service: "FakeService", first: int = 1) -> asyncio.Event:
    """Let the steps of a service from the `first` on wait until the event is set."""
    gate = asyncio.Event()

    async def script(number: int) -> None:
        if number >= first:
            await gate.wait()

    service.script = script
    return gate


def make_address() -> str:
    """Return the address of a fake that has none of its own."""
    return "127.0.0.1:0"


class FakeService:
    """Common part of both servers: identity, scripted faults, and a record of their streams."""

    method: BatchMethod

    def __init__(self, role: Role, model: HashModel, address: str | None = None, **info: Any) -> None:
        self.streams = SharedStreams(self.method, self.serve)
        self.model = model
        self.script: Script = _no_fault
        self.num_steps = 0
        self.num_open = 0
        self.num_opened = 0
        self.stepped = asyncio.Event()
        self.all_closed = asyncio.Event()
        self.openings: list[Open] = []
        self.last_words: list[tuple[str, SequenceUpdate]] = []
        whole = ModelInfo(
            role, role.value, "w1", "simulated", "t1", VOCAB_SIZE, model.context_length, "", 1, 0, ""
        )
        self.info = replace(whole, **info)
        name = f"flyserve.v1.{role.name.title()}"
        service = Service(name, self._register, self._close, drain=self.streams.drain)
        self.host = Host(service, address or make_address())
        self._dying: asyncio.Task[None] | None = None

    async def Info(self, request: Any, context: Any) -> Any:
        return info_to_wire(self.info, Load(sequences=self.num_open))

    async def serve(self, requests: AsyncIterator[Any], send: Send) -> None:
        """Serve one sequence."""
        raise NotImplementedError

    async def die(self) -> None:
        """Fault: the process dies in the middle of a step."""
        self._dying = asyncio.create_task(self.host.drain(0.0))
        await asyncio.Event().wait()

    async def dead(self) -> None:
        """Return when the scripted death is complete."""
        assert self._dying is not None
        await self._dying

    @asynccontextmanager
    async def session(self, opening: Open) -> AsyncIterator["_Session"]:
        self.num_open += 1
        self.num_opened += 1
        self.all_closed.clear()
        self.openings.append(opening)
        try:
            yield _Session(self, opening)
        finally:
            self.num_open -= 1
            if not self.num_open:
                self.all_closed.set()

    def _register(self, server: grpc.aio.Server) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        return None

    def answer(self, known: ReplicatedSequence, opening: Open, step: Any) -> Any:
        raise NotImplementedError


class _Session:
    def __init__(self, service: FakeService, opening: Open) -> None:
        self._service = service
        self._opening = opening
        self._known = ReplicatedSequence(VOCAB_SIZE, service.model.context_length)

    async def step(self, step: Any) -> Any:
        service = self._service
        service.num_steps += 1
        service.stepped.set()
        scripted = await service.script(service.num_steps)
        if scripted is not None:
            return scripted._replace(step_id=step.update.step_id)
        self._known.apply(step.update)
        return service.answer(self._known, self._opening, step)

    async def finish(self, last: SequenceUpdate) -> None:
        self._service.last_words.append((self._opening.request_id, last))


class FakeTarget(FakeService, target_pb2_grpc.TargetServicer):
    """Scores drafts.

    Attributes:
        places: Places for sequences, in the order of their arrival; None if they are unlimited.
        num_queued: Sequences that had to wait for a place.
        reported: Load that its answers report.
    """

    method = VERIFY

    def __init__(self, model: HashModel, **info: Any) -> None:
        super().__init__(Role.TARGET, model, **info)
        self.places: asyncio.Semaphore | None = None
        self.num_queued = 0
        self.reported = Load()

    async def VerifyBatches(self, request_iterator: Any, context: Any) -> None:
        await self.streams.serve(request_iterator, context)

    async def serve(self, requests: AsyncIterator[Any], send: Send) -> None:
        async def answer(message: Any) -> None:
            await send(verify_response_to_wire(message))

        @asynccontextmanager
        async def with_place(opening: Open) -> AsyncIterator[_Session]:
            if self.places is None:
                async with self.session(opening) as session:
                    yield session
                return
            if self.places.locked():
                self.num_queued += 1
                await answer(Queued())
                async with self.places:
                    await answer(Opened())
                    async with self.session(opening) as session:
                        yield session
                return
            async with self.places, self.session(opening) as session:
                yield session

        await serve_stream(requests, verify_request_from_wire, with_place, answer)

    def answer(self, known: ReplicatedSequence, opening: Open, step: VerifyStep | Extend) -> Verification:
        if isinstance(step, Extend):
            first = len(known)
            self._decode(known, opening, step.max_tokens)
            prefixes = [known.tokens.ids[:end] for end in range(first, len(known))]
            drafts: Sequence[int] = ()
        else:
            first = len(known) - step.num_drafts
            drafts = known.tokens.ids[first:]
            prefixes = [known.tokens.ids[:end] for end in range(first, len(known) + 1)]
        choices = tuple(self.model.choice(p, opening.sampling, opening.prompt_length) for p in prefixes)
        entropies = tuple(self.model.entropy(p) for p in prefixes)
        entropies = () if self.omits_entropies(opening, step) else entropies
        gaps = tuple(map(self.gap, choices, drafts)) if opening.with_gaps else ()
        return Verification(
            step.update.step_id,
            choices,
            entropies,
            gaps=gaps,
            times=StepTimes(0, 1000, 1),
            load=self.reported,
        )

    def gap(self, choice: int, draft: int) -> float:
        """Return the gap of a draft token."""
        return GAP if draft != choice else 0.0

    def omits_entropies(self, opening: Open, step: VerifyStep | Extend) -> bool:
        """Return True if an answer has no entropies."""
        return opening.without_entropies or (isinstance(step, Extend) and step.without_entropies)

    def _decode(self, known: ReplicatedSequence, opening: Open, max_tokens: int) -> None:
        for _ in range(max_tokens):
            token = self.model.choice(known.tokens.ids, opening.sampling, opening.prompt_length)
            known.tokens.extend((token,))
            if token in opening.sampling.ending_ids:
                break

    def _register(self, server: grpc.aio.Server) -> None:
        target_pb2_grpc.add_TargetServicer_to_server(self, server)


class FakeDrafter(FakeService, drafter_pb2_grpc.DrafterServicer):
    """Proposes tokens."""

    method = DRAFT

    def __init__(self, model: HashModel, **info: Any) -> None:
        super().__init__(Role.DRAFTER, model, **info)

    async def DraftBatches(self, request_iterator: Any, context: Any) -> None:
        await self.streams.serve(request_iterator, context)

    async def serve(self, requests: AsyncIterator[Any], send: Send) -> None:
        async def answer(message: Any) -> None:
            await send(draft_response_to_wire(message))

        await serve_stream(requests, draft_request_from_wire, self.session, answer)

    def answer(self, known: ReplicatedSequence, opening: Open, step: DraftStep) -> Draft:
        length = len(known)
        for _ in range(step.max_tokens):
            ids = known.tokens.ids
            token = self.model.choice(ids, opening.sampling, opening.prompt_length)
            known.tokens.extend((token,))
            if step.end_at_stop and token in opening.sampling.ending_ids:
                break
        tokens = tuple(known.tokens.ids[length:])
        return Draft(step.update.step_id, tokens, forwards=len(tokens), times=StepTimes(0, 1000, 1))

    def _register(self, server: grpc.aio.Server) -> None:
        drafter_pb2_grpc.add_DrafterServicer_to_server(self, server)


async def closed(*services: FakeService) -> None:
    """Return when the services have no open stream."""
    await asyncio.wait_for(asyncio.gather(*(each.all_closed.wait() for each in services)), 240)
