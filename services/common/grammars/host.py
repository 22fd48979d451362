"""The processes of grammars, as services use them: start one for a grammar, follow responses in it."""

import itertools
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, ClassVar

import numpy as np

from flyserve.core.sequence import common_length
from services.common.grammars.follower import Mask
from services.common.grammars.library import FaultySchemas, GrammarError, GrammarLost, SchemaFault
from services.common.grammars.limits import WALL_S, GrammarLimits, fault_of

logger = logging.getLogger(__name__)

_PROCESS_BYTES = 2 << 20
"""Memory that a fork copies by running, whatever its grammar; measured."""
_MOST_ENDS = 3
"""Times that responses may take a grammar over a limit: each costs all others a start of their own."""
_END_S = 5.0
"""Time for the processes to end by themselves, once nobody uses them."""


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """The tokenizer of a model for grammars.

    Attributes:
        key: Name of it among all tokenizers of the process.
        read: Returns the text of its `tokenizer.json`.
        vocab_size: Tokens of a mask.
    """

    key: str
    read: Callable[[], str]
    vocab_size: int


class GrammarHost:
    """The process that forks those of grammars: started when needed, and again if it ends.

    Services of one process share one: each calls `join`, and `leave` at its end, and the last one ends all
    processes. All other methods block, and may be called from any thread.
    """

    _shared: "ClassVar[GrammarHost | None]" = None
    _joining = threading.Lock()

    def __init__(self) -> None:
        self._num_users = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Connection[Any, Any] | None = None
        self._loaded: set[str] = set()

    @classmethod
    def join(cls) -> "GrammarHost":
        """Return the host of this process, with one more user."""
        with cls._joining:
            if cls._shared is None:
                cls._shared = cls()
            cls._shared._num_users += 1
            return cls._shared

    def leave(self) -> None:
        """End all processes if no other user is left; blocks."""
        with self._joining:
            self._num_users -= 1
            if not self._num_users:
                self.close()

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return None if self._process is None else self._process.pid

    def load(self, tokenizer: TokenizerSource) -> None:
        """Load a tokenizer, unless it is loaded.

        Raises:
            GrammarError: The library cannot read it.
        """
        with self._lock:
            self._load(tokenizer)

    def fork(self, tokenizer: TokenizerSource, limits: GrammarLimits) -> "tuple[int, Connection[Any, Any]]":
        """Start a process for a grammar; return its id and the connection to it.

        Raises:
            GrammarError: The tokenizer cannot be read.
            GrammarLost: No process can be started.
        """
        with self._lock:
            try:
                self._load(tokenizer)
                own, other = socket.socketpair()
            except OSError as error:
                raise GrammarLost(f"no process can be started for it: {error}") from None
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(WALL_S), 0))
            with own, other:
                numbers = {name: value for name, value in asdict(limits).items() if name != "compile_key"}
                fields = {"do": "fork", "key": tokenizer.key, "vocab_size": tokenizer.vocab_size, **numbers}
                reply = self._ask(fields, lambda control: send_handle(control, other.fileno(), self.pid))
                return reply["pid"], Connection(own.detach())

    def end(self, pid: int) -> int:
        """End the process of a grammar; return the signal that had ended it before, 0 if none had."""
        with self._lock:
            if self._control is None:
                return 0
            found: int = self._ask({"do": "end", "pid": pid})["signal"]
            return found

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._close()

    def _load(self, tokenizer: TokenizerSource) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        if tokenizer.key not in self._loaded:
            text = tokenizer.read().encode()
            fields = {"do": "load", "key": tokenizer.key, "vocab_size": tokenizer.vocab_size}
            self._ask(fields, lambda control: control.send_bytes(text))
            self._loaded.add(tokenizer.key)

    def _start(self) -> None:
        self._close()
        own, other = socket.socketpair()
        command = [sys.executable, "-m", "services.common.grammars.process", str(other.fileno())]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        with other:
            # NOTE: a session of its own, so that Ctrl-C in a terminal does not end it before its owner.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=environment,
                start_new_session=True,
            )
        self._control = Connection(own.detach())
        self._loaded = set()

    def _ask(self, fields: dict[str, Any], send_more: Callable[[Any], object] = lambda _: None) -> Any:
        """Return the reply to a request; raise GrammarError with the reason if it has failed."""
        control = self._control
        assert control is not None
        try:
            control.send_bytes(json.dumps(fields).encode())
            send_more(control)
            if not control.poll(WALL_S):
                raise EOFError
            reply = json.loads(control.recv_bytes())
        except (EOFError, OSError) as error:
            self._close()
            raise GrammarLost("the process that grammars are compiled in has ended: try again") from error
        if "lost" in reply:
            raise GrammarLost(f"no process can be started for it: {reply['lost']}")
        if "error" in reply:
            raise GrammarError(reply["error"])
        return reply

    def _close(self) -> None:
        process, self._process, control, self._control = self._process, None, self._control, None
        if control is not None:
            control.close()
        if process is not None:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


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
