"""A response that is being generated: what all kinds of it share, and its chunks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flyserve.core.clock import Clock
from flyserve.core.response import Chunk
from flyserve.core.round_record import RoundRecord
from flyserve.core.speculation import Speculation
from flyserve.core.types import Decision, FinishReason, Logprobs, Token
from router.generation.recorder import Recorder
from router.generation.replica_session import ReplicaSession
from router.replicas.connections import Connections
from router.requests.request import PreparedRequest
from router.text.output import ResponseText
from router.text.tokenizer import Tokenizer
from router.tools.parts import Parts

_OTHER_KERNELS = (
    "the response continued at a replica with other kernels: a token at a near tie may differ from the first"
    " one's"
)


@dataclass(slots=True, kw_only=True)
class Response(ABC):
    """One choice of a request.

    Attributes:
        recorder: Takes each of its rounds.
    """

    request: PreparedRequest
    speculation: Speculation
    text: ResponseText
    clock: Clock
    recorder: Recorder

    @property
    @abstractmethod
    def session(self) -> ReplicaSession[Any]:
        """Its session with the replicas whose tokens it has."""

    @property
    @abstractmethod
    def connections(self) -> Sequence[Connections[Any]]:
        """Its connections, by tier."""

    @abstractmethod
    async def decide_round(self) -> RoundRecord:
        """Decide at least one token, or carry a window over; raise FlyServeError if that is impossible."""

    def fit_context(self) -> None:
        """Let a response that may fill the context end with that of its replica, which may be another one."""
        context_length = self.session.replica.info.context_length
        if self.request.fills_context and context_length:
            room = context_length - self.speculation.prompt_length
            self.speculation.limit(min(self.request.max_new_tokens, room))

    def take_logprobs(self, position: int, decided: Token) -> Logprobs | None:
        """Return the log-probabilities of the token decided at a position; None if none were requested."""
        return None

    def warnings(self) -> Iterator[str]:
        """Yield warnings about this choice, at its end."""
        if self.session.has_changed_kernels:
            yield _OTHER_KERNELS


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageChunk(Chunk):
    """Chunk of a message with a format; its text is that of the content.

    Attributes:
        parts: New parts of the message.
    """

    parts: Parts


def make_chunk(response: Response, index: int, decision: Decision, tokenizer: Tokenizer) -> Chunk | None:
    """Return the chunk that a round adds to a choice; None if it has neither tokens nor text."""
    tokens = tuple(_tokens(response, decision, tokenizer))
    finish_reason = response.speculation.finish_reason
    text, parts = response.text.take_new(is_last=finish_reason is not None)
    if finish_reason is None and not tokens and not text:
        return None
    fields: dict[str, Any] = {
        "choice_index": index,
        "text": text,
        "tokens": tokens,
        "rounds": response.recorder.take_rounds(),
        "kernels": response.session.take_kernels(),
    }
    if finish_reason is not None:
        fields |= {
            "finish_reason": finish_reason,
            "statistics": response.recorder.finish(finish_reason, response.connections),
            "warnings": (*response.request.warnings, *response.warnings(), *_on_length(response)),
        }
    return Chunk(**fields) if parts is None else MessageChunk(**fields, parts=parts)


def _on_length(response: Response) -> Iterator[str]:
    """Yield a warning if a response has ended before `min_tokens`, as only a grammar can make it."""
    speculation, least = response.speculation, response.request.sampling.min_tokens
    length = speculation.decided_length - speculation.prompt_length
    if length < least and speculation.finish_reason is FinishReason.STOP_TOKEN:
        yield f"sampling.min_tokens is {least}, but the grammar allows no text after {length} tokens"


def _tokens(response: Response, decision: Decision, tokenizer: Tokenizer) -> Iterator[Token]:
    """Yield the tokens that a round decided, each with its texts and log-probabilities."""
    first = response.speculation.decided_length - len(decision.decided)
    texts = response.text.take_token_texts()
    for position, (decided, text) in enumerate(zip(decision.decided, texts, strict=True), start=first):
        choice_text = "" if decided.id == decided.choice else tokenizer.pieces((decided.choice,))[0]
        yield Token(*decided[:4], text, choice_text, response.take_logprobs(position, decided))
