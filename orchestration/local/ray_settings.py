"""Settings of Ray that it has no parameters for, in force while a block runs."""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from flyserve.signals import stop_signals


def loopback_as_address() -> AbstractContextManager[None]:
    """Let Ray take loopback for this machine's address in the block, as it does on macOS, and listen there.

    Otherwise Ray replaces every loopback address that it is given, of a node or of a GCS, by that of the
    machine's network interface, and all of its processes listen at all interfaces.

    NOTE: this is Ray's RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, which it reads once, at its first import. The
    variable itself would be inherited by processes that must not have it: `ray start` then refuses to work.
    """
    return _setting("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False)


def without_messages() -> AbstractContextManager[None]:
    """Keep Ray's own messages, such as that a worker has died, out of this process's output in the block.

    NOTE: `log_to_driver=False` is only about the output of workers. FlyServe reports such faults itself.
    """
    return _setting("ray._private.worker", "_worker_logs_enabled", False)


@contextmanager
def own_signals() -> Iterator[None]:
    """Start or join Ray in the block; this process handles its stop signals itself, during it and after it.

    NOTE: Ray installs a handler of SIGTERM that exits, and its processes, which inherit what is blocked here,
    would end at once with the terminal, while running responses finish. Another thread receives SIGHUP.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    except SystemExit:
        if stop_signals.first is None:
            stop_signals.receive(signal.SIGTERM)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        stop_signals.reinstall()


@contextmanager
def _setting(module: str, name: str, value: object) -> Iterator[None]:
    settings: Any = import_module(module)
    before = getattr(settings, name)
    setattr(settings, name, value)
    try:
        yield
    finally:
        setattr(settings, name, before)
