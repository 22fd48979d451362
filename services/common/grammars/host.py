"""The process that those of grammars are forked from, as services use it."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, ClassVar

from services.common.grammars.library import GrammarError, GrammarLost
from services.common.grammars.limits import WALL_S, GrammarLimits

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
