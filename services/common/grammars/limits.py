"""Limits of the process that a grammar lives in, and the fault that a death of it means."""

import signal
from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """Limits of one grammar's process.

    A replica has wider ones than a router, so that it refuses no grammar that its router took.

    Attributes:
        compile_s: CPU time to compile the grammar, and for the first mask.
        compile_key: Configuration key of `compile_s`; "" if it has none.
        mask_s: CPU time for one mask, and for the tokens before it.
        memory_bytes: Memory beside that of the library and the tokenizer; each response that is followed may
            add as much.
        stack_bytes: Stack of the thread that compiles: the library recurses over references.
    """

    compile_s: float
    compile_key: str = ""
    mask_s: float = 2.0
    memory_bytes: int = 256 * _MIB
    stack_bytes: int = 16 * _MIB


REPLICA_LIMITS = GrammarLimits(compile_s=20.0, memory_bytes=512 * _MIB, stack_bytes=32 * _MIB)
WALL_S = 300.0
"""Longest wait for an answer of a grammar's process: it ends hangs; the limits count CPU time and memory."""


def fault_of(signal_number: int, limits: GrammarLimits, is_compiled: bool) -> str:
    """Return why a grammar cannot be used whose process was ended by a signal."""
    match signal_number:
        case signal.SIGPROF | signal.SIGXCPU if is_compiled:
            return f"needs more than {limits.mask_s:g} s of CPU time for one mask: make it less ambiguous"
        case signal.SIGPROF | signal.SIGXCPU:
            key = f" ({limits.compile_key})" if limits.compile_key else ""
            remedy = "use fewer properties, rules or repetitions"
            return f"needs more than {limits.compile_s:g} s of CPU time to compile{key}: {remedy}"
        case signal.SIGSEGV | signal.SIGBUS:
            depth = f"its references need more than {limits.stack_bytes // _MIB} MiB of stack"
            return f"has too long a chain of references, {depth}: refer to fewer rules from within others"
        case signal.SIGABRT:
            return f"needs more than {limits.memory_bytes // _MIB} MiB of memory: make it smaller"
    return f"ended the process that compiles it by signal {signal_number}"
