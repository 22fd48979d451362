"""Grammars in processes of their own: equal to one in this process, ended at each limit, never left."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.reduction import sendfds
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.grammars.follower import Mask
from services.common.grammars.host import GrammarHost, TokenizerSource
from services.common.grammars.hosted import HostedGrammar
from services.common.grammars.library import GrammarError, GrammarLost
from services.common.grammars.limits import GrammarLimits
from services.common.grammars.process import Parent
from tests.support.grammars import END, FORM, TOO_WIDE_AFTER_AA, encoded, follower
from tests.support.processes import TARGET_MODEL

TEXT = (TARGET_MODEL / "tokenizer.json").read_text(encoding="utf-8")
SOURCE = TokenizerSource("demo", lambda: TEXT, 640)
LIMITS = GrammarLimits(compile_s=20, mask_s=20)


@pytest.fixture(scope="module")
def host() -> Iterator[GrammarHost]:
    with closing(GrammarHost()) as host:
        yield host


def compiled(host: GrammarHost, form: str = FORM, limits: GrammarLimits = LIMITS) -> HostedGrammar:
    grammar = HostedGrammar(host, SOURCE, limits)
    grammar.compile(form)
    return grammar


def of_lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def chain(length: int) -> str:
    rules = "\n".join(f"r{number}: r{number + 1}" for number in range(length))
    return of_lark(f'start: r0\n{rules}\nr{length}: "a"')


def properties(number: int) -> str:
    return json.dumps({"grammars": [{"json_schema": {"properties": {f"{n:x}": {} for n in range(number)}}}]})


def unwinding(width: int) -> str:
    """Return a grammar whose last token ends a tower of rules, all of which have many continuations."""
    names = range(width)
    ways = " | ".join(f"w{name}" for name in names)
    rules = "\n".join(f'w{name}: y z{name}\nz{name}: "{name}"?' for name in names)
    return of_lark(f'start: y\ny: "a" w | "!"\nw: {ways}\n{rules}')


responses = st.lists(st.sampled_from([*encoded('{"a": 12}'), *encoded("[x"), END]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(responses, responses), min_size=1, max_size=4))
def test_masks_are_those_of_a_grammar_in_this_process(
    host: GrammarHost, steps: list[tuple[list[int], list[int]]]
) -> None:
    own, hosted = follower(), compiled(host).follower()
    for response, drafts in steps:
        expected, found, faults = list[bytes](), list[bytes](), list[str]()
        for masks, each in ((expected, own), (found, hosted)):
            try:
                masks += (mask.tobytes() for mask in each.masks(response, drafts, (END,)))
            except GrammarError as error:
                faults.append(str(error))
        assert found == expected and len(set(faults)) == len(faults) / 2


def test_followers_of_one_grammar_are_independent(host: GrammarHost) -> None:
    grammar = compiled(host)
    first, second = grammar.follower(), grammar.follower()
    (start,) = first.masks([], [], ())
    (_,) = second.masks(encoded("{"), [], ())
    (again,) = first.masks([], [], ())
    assert (start == again).all()


FAULTS = [
    (of_lark("start: foo"), LIMITS, "unknown name"),
    (chain(30_000), LIMITS, "too long a chain of references.* 16 MiB of stack"),
    (properties(12_000), GrammarLimits(0.2, "limits.key"), r"0.2 s of CPU time to compile \(limits.key\)"),
    (properties(4_000), GrammarLimits(20, memory_bytes=8 << 20), "more than 8 MiB of memory"),
]


@pytest.mark.parametrize(("form", "limits", "message"), FAULTS, ids=["fault", "depth", "time", "memory"])
def test_each_limit_is_named_and_ends_one_process(
    host: GrammarHost, form: str, limits: GrammarLimits, message: str
) -> None:
    other, parent = compiled(host), host.pid
    with pytest.raises(GrammarError, match=message):
        compiled(host, form, limits)
    assert host.pid == parent and list(other.follower().masks([], [], ()))


def test_each_response_of_a_grammar_may_take_as_much_memory_as_the_grammar(host: GrammarHost) -> None:
    form = json.dumps({"grammars": [{"json_schema": {"type": "object"}}]})
    grammar = compiled(host, form, GrammarLimits(20, memory_bytes=16 << 20, mask_s=20))
    response = encoded("{" + ", ".join(f'"key {number}": {[number] * 9}' for number in range(200)))
    followers = [grammar.follower() for _ in range(24)]
    assert all(len(list(each.masks(response, [], ()))) == 1 for each in followers)


def found(masks: Iterator[Mask]) -> tuple[list[bytes], str]:
    """Return the masks until a fault, and the fault."""
    made = list[bytes]()
    try:
        made += (mask.tobytes() for mask in masks)
    except GrammarError as error:
        assert not isinstance(error, GrammarLost)
        return made, str(error)
    return made, ""


def test_a_mask_without_end_ends_its_own_response_alone(host: GrammarHost) -> None:
    grammar = compiled(host, unwinding(600), GrammarLimits(20, mask_s=0.2))
    letters, (mark,) = encoded("a") * 2000, encoded("!")
    runaway, other = grammar.follower(), grammar.follower()
    before = [found(other.masks(letters[:length], [mark], ())) for length in (0, 1)]
    drafted, fault = found(runaway.masks([], letters, ()))
    assert drafted == before[0][0][:1] and "0.2 s of CPU time for one mask" in fault
    made, fault = found(runaway.masks(letters, [], ()))
    assert not made and "one mask" in fault and not grammar.is_lost
    assert [found(other.masks(letters[:length], [mark], ())) for length in (1, 0)] == before[::-1]


def test_time_is_limited_for_each_mask_alone(host: GrammarHost) -> None:
    form, letters = of_lark('start: e\ne: e e | e "+" e | e e e | /[ab]/'), encoded("a") * 150
    started_s = time.process_time()
    expected = found(follower(form).masks([], letters, ()))
    limit_s = (time.process_time() - started_s) / 4  # the longest mask takes a tenth of that
    grammar = compiled(host, form, GrammarLimits(20, mask_s=limit_s))
    assert found(grammar.follower().masks([], letters, ())) == expected and not expected[1]


def test_a_response_is_followed_from_its_start_whatever_that_takes(host: GrammarHost) -> None:
    """Each of its steps was cheap. After a new start of the process all of them come at once."""
    form, letters = of_lark('start: e\ne: e e | e "+" e | e e e | /[ab]/'), encoded("a") * 300
    started_s = time.process_time()
    expected = found(follower(form).masks(letters, [], ()))
    limit_s = (time.process_time() - started_s) / 4
    grammar = compiled(host, form, GrammarLimits(20, mask_s=limit_s))
    assert found(grammar.follower().masks(letters, [], ())) == expected and not expected[1]


def test_a_grammar_that_ends_its_process_again_and_again_is_given_up(host: GrammarHost) -> None:
    grammar = compiled(host, unwinding(600), GrammarLimits(20, mask_s=0.2))
    letters, other = encoded("a") * 2000, grammar.follower()
    for number in range(3):
        assert not grammar.is_lost and list(other.masks([], [], ())), number
        assert "one mask" in found(grammar.follower().masks(letters, [], ()))[1]
    assert grammar.is_lost and "one mask" in found(other.masks([], [], ()))[1]


def test_a_fault_of_a_draft_ends_the_masks_there_and_nothing_else(host: GrammarHost) -> None:
    grammar = compiled(host, of_lark(TOO_WIDE_AFTER_AA))
    (a,), (b,) = encoded("a"), encoded("b")
    drafting, plain = grammar.follower(), grammar.follower()
    masks, fault = found(drafting.masks([], [a, a, b], ()))
    assert "items" in fault and masks == found(plain.masks([], [a], ()))[0]
    assert found(drafting.masks([a], [b], ())) == found(plain.masks([a], [b], ()))
    assert found(drafting.masks([a, a], [], ()))[1] == fault


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_lost_parent_is_replaced(host: GrammarHost) -> None:
    grammar = compiled(host)
    assert host.pid is not None
    pids = _children(host.pid)
    os.kill(host.pid, signal.SIGKILL)
    _await_end(pids)
    with pytest.raises(GrammarLost):
        list(grammar.follower().masks([], [], ()))
    assert list(compiled(host).follower().masks([], [], ()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_process_is_no_fault_of_its_grammar(host: GrammarHost) -> None:
    other = compiled(host)
    assert host.pid is not None
    before = set(_children(host.pid))
    grammar = compiled(host)
    (pid,) = set(_children(host.pid)) - before
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(GrammarLost, match="was killed"):
        list(grammar.follower().masks([], [], ()))
    assert grammar.is_lost and list(other.follower().masks([], [], ()))


def test_a_process_that_cannot_be_started_is_no_fault_of_its_grammar(
    host: GrammarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Any:
        raise OSError("no more of it")

    compiled(host)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socketpair", fails)
        with pytest.raises(GrammarLost, match=r"can be started.*no more of it"):
            compiled(host)
    own, other = socket.socketpair()
    with own, Connection(other.detach()) as control:
        sendfds(own, [own.fileno()])
        monkeypatch.setattr(os, "fork", fails)
        assert Parent(control).fork("demo", 640) == {"lost": "no more of it"}


def test_a_tokenizer_that_cannot_be_read_is_a_fault(host: GrammarHost) -> None:
    with pytest.raises(GrammarError, match="tokenizer cannot be used"):
        HostedGrammar(host, TokenizerSource("bad", lambda: "{}", 640), LIMITS)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _await_end(pids: list[int]) -> None:
    while any(Path(f"/proc/{pid}").exists() and _state(pid) != "Z" for pid in pids):
        time.sleep(0.01)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(120)
def test_an_unused_grammar_and_a_closed_host_leave_no_process() -> None:
    with closing(GrammarHost()) as host:
        kept, dropped = compiled(host), compiled(host)
        assert host.pid is not None
        pids = _children(host.pid)
        assert len(pids) == 2
        del dropped
        _await_end(pids[1:])
        assert list(kept.follower().masks([], [], ()))
        pids.append(host.pid)
    _await_end(pids)


_OWNER = """
import sys
from tests.unit.grammars.test_grammar_processes import GrammarHost, compiled
host = GrammarHost()
grammar = compiled(host)
print(host.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(120)
def test_the_end_of_the_owner_leaves_no_process() -> None:
    command = [sys.executable, "-c", _OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        parent = int(owner.stdout.readline())
        pids = [parent, *_children(parent)]
        assert len(pids) == 2
        owner.kill()
    _await_end(pids)
