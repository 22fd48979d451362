"""The processes that grammars live in: a parent that loads tokenizers, and a fork of it for each grammar.

The library compiles and follows grammars in native code that nothing can interrupt, and that ends its process
when its stack or memory is exhausted. So each grammar has a process with limits of its own. `grammars.host`
starts the parent, `python -m services.common.grammars.process`, and talks to both over sockets.
"""

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import TYPE_CHECKING, Any, NoReturn

from services.common.grammars.follower import GrammarFollower
from services.common.grammars.library import (
    GrammarError,
    compile_grammar,
    faults_of_schemas,
    load_tokenizer,
    one_line,
)

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_PR_SET_PDEATHSIG = 1
_PAGE_BYTES = resource.getpagesize()
_STEPS_PER_REPORT = 64
"""Steps after which the memory is reported again."""
_PIECE_TOKENS = 16
"""Tokens of a response that are followed within the time of a mask."""
_NICENESS = 5
"""Niceness of the thread that compiles: tokens of other requests go first."""


def main() -> None:
    """Serve the process at the other end of the given socket until it closes it, or ends."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    with contextlib.suppress(EOFError, OSError), Connection(int(sys.argv[1])) as control:
        Parent(control).serve()


class Parent:
    """Loads tokenizers, and forks the processes of grammars."""

    def __init__(self, control: "Connection[Any, Any]") -> None:
        self._control = control
        self._tokenizers: dict[str, LLTokenizer] = {}
        self._signals: dict[int, int] = {}

    def serve(self) -> None:
        """Answer requests until the other end is closed."""
        while True:
            request = _receive(self._control)
            self._reap()
            _send(self._control, getattr(self, request.pop("do"))(**request))

    def load(self, key: str, vocab_size: int) -> dict[str, Any]:
        """Load a tokenizer, whose text follows, for the processes that are forked later."""
        text = self._control.recv_bytes().decode()
        try:
            self._tokenizers[key] = load_tokenizer(text, vocab_size)
        except GrammarError as error:
            return {"error": str(error)}
        gc.freeze()
        return {}

    def fork(self, key: str, vocab_size: int, **limits: float) -> dict[str, Any]:
        """Fork a process for a grammar; it serves the socket that follows."""
        link = Connection(recv_handle(self._control))
        try:
            pid = os.fork()
        except OSError as error:
            return {"lost": str(error)}
        if pid == 0:
            self._become_grammar(link, key, vocab_size, limits)
        link.close()
        self._signals.pop(pid, None)  # an earlier process may have had the same id
        return {"pid": pid}

    def _become_grammar(
        self, link: "Connection[Any, Any]", key: str, vocab_size: int, limits: dict[str, float]
    ) -> NoReturn:
        """Serve a grammar in the forked process, and end it."""
        try:
            faulthandler.disable()  # it may end at a limit, which is reported as the grammar's fault
            self._control.close()
            _bind_to_parent()
            GrammarProcess(link, self._tokenizers[key], vocab_size, limits).serve()
        except (EOFError, OSError):
            pass  # nobody uses it any more
        except MemoryError:
            os.abort()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def end(self, pid: int) -> dict[str, Any]:
        """End a process; return the number of the signal that had ended it before, 0 if none had."""
        with contextlib.suppress(ChildProcessError):
            if pid not in self._signals and not self._collect(pid, os.WNOHANG):
                os.kill(pid, signal.SIGKILL)
                self._collect(pid, 0)
        return {"signal": self._signals.pop(pid, 0)}

    def _reap(self) -> None:
        """Collect the processes that have ended."""
        with contextlib.suppress(ChildProcessError):
            while self._collect(-1, os.WNOHANG):
                pass

    def _collect(self, pid: int, options: int) -> bool:
        """Collect a process, -1 for any, if it has ended; raise ChildProcessError if there is none."""
        ended, status = os.waitpid(pid, options)
        if ended and os.WIFSIGNALED(status):
            self._signals[ended] = os.WTERMSIG(status)
        return bool(ended)


class GrammarProcess:
    """Compiles one grammar and follows its responses, each under the number of its follower."""

    def __init__(
        self,
        link: "Connection[Any, Any]",
        tokenizer: "LLTokenizer",
        vocab_size: int,
        limits: dict[str, float],
    ) -> None:
        self._link = link
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._limits = limits
        self._responses: dict[int, tuple[GrammarFollower, list[int]]] = {}
        self._num_steps = 0
        self._bytes_before = _own_bytes()
        self._mapped_before = _memory_pages(0) * _PAGE_BYTES
        self._limit_memory()

    def serve(self) -> None:
        """Compile the first message, then answer steps until the other end is closed."""
        with _limited_cpu(self._limits["compile_s"]):
            matcher = self._compile(self._link.recv_bytes().decode())
        while matcher is not None:
            self._step(matcher, **_receive(self._link))

    def _compile(self, grammar: str) -> "LLMatcher | None":
        """Return the matcher; report its fault if it has one."""
        found: list[LLMatcher] = []
        reply: dict[str, Any] = {}

        def compile_it() -> None:
            os.nice(_NICENESS)  # on Linux of this thread alone
            self._bytes_before = _own_bytes()
            try:
                matcher = compile_grammar(self._tokenizer, grammar)
                _try_first_step(matcher)
                found.append(matcher)
            except BaseException as error:  # a panic of the library is not an Exception
                reply["error"] = one_line(error)
                reply["faults"] = {name: asdict(each) for name, each in faults_of_schemas(grammar).items()}

        threading.stack_size(int(self._limits["stack_bytes"]))
        thread = threading.Thread(target=compile_it)
        thread.start()
        thread.join()
        _send(self._link, {"bytes": self._grown(), **reply})
        return found[0] if found else None

    def _step(
        self,
        matcher: "LLMatcher",
        number: int,
        keep: int,
        tokens: list[int],
        drafts: list[int],
        ending_ids: list[int],
        closed: list[int],
    ) -> None:
        """Send the masks after a response and each of its drafts; `keep` tokens of it are as they were.

        Those before a fault are sent with it. It ends the follower: the next step keeps nothing.
        """
        for each in closed:
            self._responses.pop(each, None)
        if number not in self._responses:
            self._limit_memory(len(self._responses) + 1)
            self._responses[number] = self._follower(matcher), []
        follower, response = self._responses[number]
        response[keep:] = tokens
        masks: list[bytes] = []
        reply: dict[str, Any] = {}
        with _limited_cpu(self._limits["mask_s"]) as renew:
            try:
                # NOTE: a response that is new here is followed from its start: each piece has its own time.
                for end in range(min(keep, len(response)) + _PIECE_TOKENS, len(response), _PIECE_TOKENS):
                    follower.move(response[:end])
                    renew()
                for mask in follower.masks(response, drafts, ending_ids):
                    masks.append(mask.tobytes())
                    renew()
            except GrammarError as error:
                reply["error"] = str(error)
                del self._responses[number]  # the library follows no response after a fault
        self._num_steps += 1
        if self._num_steps % _STEPS_PER_REPORT == 0:
            reply["bytes"] = self._grown()
        header = json.dumps({"masks": len(masks), **reply}).encode()
        self._link.send_bytes(b"".join((header, b"\n", *masks)))

    def _follower(self, matcher: "LLMatcher") -> GrammarFollower:
        return GrammarFollower(matcher.deep_copy(), self._vocab_size, self._tokenizer.eos_tokens)

    def _limit_memory(self, num_responses: int = 0) -> None:
        """Limit the memory that is added: that of the grammar, and as much for each of its responses."""
        if sys.platform == "linux":
            added = (1 + num_responses) * self._limits["memory_bytes"] + self._limits["stack_bytes"]
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            most = self._mapped_before + int(added)
            soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def _grown(self) -> int:
        return max(0, _own_bytes() - self._bytes_before)


def _try_first_step(matcher: "LLMatcher") -> None:
    """Compute what every response needs first, on a copy, so that its cost counts; its memory is kept.

    Raises:
        GrammarError: The first mask exceeds a limit or allows nothing, so no response can begin.
    """
    first = matcher.deep_copy()
    mask = int.from_bytes(first.compute_bitmask(), "little")
    if first.is_error():
        raise GrammarError(one_line(first.get_error()))
    if mask:
        first.try_consume_tokens([(mask & -mask).bit_length() - 1])
    elif not first.is_accepting():
        raise GrammarError("allows no text at all")


@contextlib.contextmanager
def _limited_cpu(seconds: float) -> Iterator[Callable[[], object]]:
    """End this process by SIGPROF if the block takes more CPU time; what it yields renews the time."""
    renew = partial(signal.setitimer, signal.ITIMER_PROF, seconds)
    renew()
    yield renew
    signal.setitimer(signal.ITIMER_PROF, 0)


def _bind_to_parent() -> None:
    """End with the process that forked this one, and before any other where memory is short."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # a system without memory ends this process, not the one that serves


def _own_bytes() -> int:
    """Return the resident memory that is no part of a file."""
    return (_memory_pages(1) - _memory_pages(2)) * _PAGE_BYTES


def _memory_pages(field: int) -> int:
    """Return a field of this process's memory; 0 where the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[field])
    except OSError:
        return 0


def _receive(connection: "Connection[Any, Any]") -> dict[str, Any]:
    message: dict[str, Any] = json.loads(connection.recv_bytes())
    return message


def _send(connection: "Connection[Any, Any]", message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main()
