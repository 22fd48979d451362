"""The wording of option limits and option errors: typer's own is that of other libraries."""

from contextlib import suppress
from importlib import import_module
from typing import Any

import typer.core

_LARGEST_SHOWN = 2**32
"""A larger upper limit is that of a type: nobody has to know it."""


def use_plain_words() -> None:
    """Describe ranges and wrong values of options in plain words."""
    # NOTE: typer has no other place to set them. A version that moves them keeps its own wording; the
    # tests of the command line fail with it.
    setattr(typer.core, "describe_number_range", readable_range)  # noqa: B010 - not exported by the module
    for name in ("_coercion", "_param_types"):
        with suppress(ImportError):
            setattr(import_module(f"typer.{name}"), "get_error_msg", _wrong_value)  # noqa: B010


def readable_range(least: float | None, most: float | None) -> str | None:
    """Return a range such as `1 or more`, `0 to 20`; None if there is no limit."""
    most = None if most is not None and most > _LARGEST_SHOWN else most
    if most is None:
        return None if least is None else f"{least} or more"
    return f"at most {most}" if least is None else f"{least} to {most}"


def _wrong_value(error: Any) -> str:
    from flyserve.core.wording import requirement

    (fault, *_) = error.errors()
    wrong = requirement(fault)
    return f"is {fault['input']!r}, {wrong}" if wrong.startswith("must ") else wrong
