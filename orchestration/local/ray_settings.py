"""Settings of Ray that it has no parameters for, in force while a block runs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any


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
def _setting(module: str, name: str, value: object) -> Iterator[None]:
    settings: Any = import_module(module)
    before = getattr(settings, name)
    setattr(settings, name, value)
    try:
        yield
    finally:
        setattr(settings, name, before)
