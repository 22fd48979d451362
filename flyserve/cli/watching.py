"""Pictures of a deployment that are kept up to date, as `--watch` asks for."""

import time
from collections.abc import Callable, Iterator

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from flyserve.cli.show import print_json
from flyserve.cli.terminal import output
from flyserve.core.errors import FlyServeError


def keep_watching(view: Callable[[], RenderableType], every_s: float) -> None:
    """Keep a picture up to date, or print one after the other if there is no terminal.

    A terminal shows its first lines if it has no room for all, and the last picture as a whole at the end. A
    deployment that does not answer is shown as unavailable until it answers again.
    """
    console = output()
    looks = (_look(view) for _ in _ticks(every_s))
    if not console.is_terminal:
        for look in looks:
            console.print(look)
            console.file.flush()
        return
    # NOTE: Live crops lines that the console leaves to the terminal to wrap.
    console.soft_wrap = False
    with Live(console=console, auto_refresh=False) as live:
        for look in looks:
            live.update(look, refresh=True)


def keep_printing(look: Callable[[], object], every_s: float) -> None:
    """Print one JSON object after the other; if a deployment no longer answers, one with the `error`."""
    for number, _ in enumerate(_ticks(every_s)):
        try:
            print_json(look())
        except FlyServeError as error:
            if not number:
                raise
            print_json({"error": str(error)})


def _ticks(every_s: float) -> Iterator[None]:
    """Yield at once, and after each pause."""
    while True:
        yield
        time.sleep(every_s)


def _look(view: Callable[[], RenderableType]) -> RenderableType:
    """Return the picture at this moment, with the time."""
    try:
        shown = view()
    except FlyServeError as error:
        shown = Text(f"unavailable: {error}", style="red")
    return Group(Text(time.strftime("%H:%M:%S"), style="dim"), shown)
