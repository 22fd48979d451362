"""Grammars that are compiled in processes of their own; responses are followed there."""

import itertools
import json
import logging
import signal
import threading
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from flyserve.core.sequence import common_length
from services.common.grammars.follower import Mask
from services.common.grammars.host import GrammarHost, TokenizerSource
from services.common.grammars.library import FaultySchemas, GrammarError, GrammarLost, SchemaFault
from services.common.grammars.limits import WALL_S, GrammarLimits, fault_of

logger = logging.getLogger(__name__)

_PROCESS_BYTES = 2 << 20
"""Memory that a fork copies by running, whatever its grammar; measured."""
_MOST_ENDS = 3
"""Times that responses may take a grammar over a limit: each costs all others a start of their own."""


class HostedGrammar:
    """A grammar that is compiled in a process of its own. The process ends when nothing refers to it.

    A response that takes the process over a limit ends it; the next step compiles the grammar again. After
    some such ends the fault is that of all responses.

    Attributes:
        num_bytes: Memory that its process has taken so far, beside what it shares with others.
    """

    def __init__(self, host: GrammarHost, tokenizer: TokenizerSource, limits: GrammarLimits) -> None:
        self._host = host
        self._tokenizer = tokenizer
        self._limits = limits
        self._form = b""
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._closed: list[int] = []
        self._followed: set[int] = set()
        self._fault: GrammarError | None = None
        self._num_ends = 0
        self._is_compiled = False
        self.num_bytes = _PROCESS_BYTES
        self._pid, self._link = host.fork(tokenizer, limits)

    @property
    def is_lost(self) -> bool:
        """True if its process has ended, and is not replaced."""
        if self._fault is None:
            return False
        return isinstance(self._fault, GrammarLost) or self._num_ends >= _MOST_ENDS

    def compile(self, form: str) -> None:
        """Compile a grammar in the library's form; must be called once, first. Blocks.

        Raises:
            FaultySchemas: Schemas in the grammar have faults.
            GrammarError: The grammar has another fault, or exceeds a limit.
        """
        with self._lock:
            self._form = form.encode()
            reply, _ = self._talk(self._form)
        if faults := reply.get("faults"):
            found = {name: SchemaFault(**fault) for name, fault in faults.items()}
            raise FaultySchemas(reply["error"], found)
        if "error" in reply:
            raise GrammarError(reply["error"])
        self._is_compiled = True

    def follower(self) -> "HostedFollower":
        """Return a follower at the start of a response."""
        return HostedFollower(self, next(self._numbers))

    def step(
        self, number: int, keep: int, tokens: Sequence[int], drafts: Sequence[int], ending_ids: Sequence[int]
    ) -> tuple[dict[str, Any], bytes]:
        """Return the reply to a step of a follower, and the masks; `keep` tokens are as in its last step.

        Raises:
            GrammarLost: The process has ended, for no fault of the grammar or of another step.
            GrammarError: This step has exceeded a limit.
        """
        with self._lock:
            if self._fault is not None and not self.is_lost:
                self._restart()
            closed, self._closed = self._closed, []
            keep = keep if number in self._followed else 0
            self._followed = (self._followed | {number}).difference(closed)
            fields = {"number": number, "keep": keep, "tokens": tokens[keep:], "drafts": drafts}
            reply, masks = self._talk(
                json.dumps({**fields, "ending_ids": ending_ids, "closed": closed}).encode()
            )
            if "error" in reply:
                self._followed.discard(number)
            return reply, masks

    def forget(self, number: int) -> None:
        """Free a follower with the next step."""
        self._closed.append(number)

    def _restart(self) -> None:
        """Compile the grammar in another process, in place of one that a step has ended."""
        self._fault, self._is_compiled, self._followed = None, False, set()
        try:
            if self._host.pid is None:
                raise GrammarLost("the process that grammars are compiled in has ended")
            self._pid, self._link = self._host.fork(self._tokenizer, self._limits)
            self._talk(self._form)
        except GrammarError as error:
            self._fault = GrammarLost(f"its process cannot be started again: it {error}")
            raise self._fault from None
        self._is_compiled = True

    def _talk(self, message: bytes) -> tuple[dict[str, Any], bytes]:
        if self._fault is not None:
            raise self._fault
        try:
            self._link.send_bytes(message)
        except OSError:
            raise self._ended() from None
        header, _, masks = self._receive().partition(b"\n")
        reply: dict[str, Any] = json.loads(header)
        if "bytes" in reply:
            self.num_bytes = _PROCESS_BYTES + reply["bytes"]
        return reply, masks

    def _receive(self) -> bytes:
        try:
            return self._link.recv_bytes()
        except BlockingIOError:
            self._ended()
            self._fault = GrammarLost(f"its process has not answered for {WALL_S:g} s: try again")
            raise self._fault from None
        except (EOFError, OSError):
            raise self._ended() from None

    def _ended(self) -> GrammarError:
        """Return why the process has ended; end it if it only does not answer."""
        self._link.close()
        try:
            signal_number = self._host.end(self._pid)
        except GrammarError as error:
            self._fault = error
            return error
        if signal_number == signal.SIGKILL:  # of no limit: the system has no memory left, or someone ended it
            self._fault = GrammarLost("its process was killed: try again")
        elif signal_number:
            self._num_ends += 1
            self._fault = GrammarError(fault_of(signal_number, self._limits, self._is_compiled))
        else:
            self._fault = GrammarLost("its process has ended: try again")
        logger.warning("the process of a grammar has ended: it %s", self._fault)
        return self._fault


class HostedFollower:
    """Follows one response through a grammar in the grammar's process, as `GrammarFollower` does."""

    def __init__(self, grammar: HostedGrammar, number: int) -> None:
        self._grammar = grammar
        self._number = number
        self._tokens: list[int] = []

    def __del__(self) -> None:
        self._grammar.forget(self._number)

    def masks(
        self, tokens: Sequence[int], drafts: Sequence[int], ending_ids: Collection[int]
    ) -> Iterator[Mask]:
        """Yield the masks that `GrammarFollower.masks` does; blocks until all are computed."""
        length = len(self._tokens)
        is_longer = list(tokens[:length]) == self._tokens
        keep = length if is_longer else common_length(self._tokens, tokens)
        self._tokens = list(tokens)
        step = partial(self._grammar.step, self._number, keep, self._tokens, ending_ids=list(ending_ids))
        try:
            reply, data = step(list(drafts))
        except GrammarError as error:
            if isinstance(error, GrammarLost) or not drafts:
                raise
            # A draft that the model would not choose may be the reason: the response has its own mask.
            reply, data = step([])
            reply.setdefault("error", str(error))
        if reply["masks"]:
            yield from np.frombuffer(data, np.uint32).reshape(reply["masks"], -1)
        if "error" in reply:
            raise GrammarError(reply["error"])
