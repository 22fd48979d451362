"""Garbage collection in a process that serves."""

import atexit
import gc


def exempt_from_collection() -> None:
    """Collect garbage now, and exempt all that is left from later collections, until the process ends.

    A process that has imported torch and loaded a model holds half a million objects, which live as long as
    it does. A collection that looks at all of them stops it for 0.2 s.
    """
    gc.collect()
    gc.freeze()
    # Some libraries report what the last collection of the process does not free.
    atexit.register(gc.unfreeze)
