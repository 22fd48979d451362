"""Pieces of calibrations without a deployment, for the tests of several of its parts."""

import io
import threading
from typing import Any

from rich.console import Console

from flyserve.calibration.collect import Collector
from flyserve.calibration.judge import Judge
from flyserve.calibration.prompts import Prompt
from flyserve.calibration.recording import Pair, Recording
from flyserve.calibration.run import Calibration, Save
from flyserve.core.errors import ConfigError, DeadlineExceeded
from flyserve.core.evidence import RoundEvidence
from flyserve.core.response import TextToken

PAIR = Pair("target", "kernels", "drafter", "own kernels", "tokens", 15, 512, 512, (0, 1))
EVIDENCE = RoundEvidence((5,), (5, 6), (0.5, 0.1), (0.0,), (5, 7, 8, 6, 7, 8), (-0.1, -2.0, -4.0) * 2)


def calibration(client: Any, recording: Recording, save: Save = lambda: None) -> Calibration:
    prompts = [Prompt(f"p:{place}", text) for place, text in enumerate(recording.prompts, 1)]
    console = Console(file=io.StringIO())
    return Calibration(Collector(client, PAIR, 10), recording, prompts, Judge(), console, save)


class TimedOut:
    """A client whose every request takes too long.

    Attributes:
        limits_s: Time limits of the requests.
    """

    def __init__(self) -> None:
        self.limits_s: list[float | None] = []

    def generate(self, *_: Any, timeout_s: float | None = None, **__: Any) -> Any:
        self.limits_s.append(timeout_s)
        raise DeadlineExceeded("too late")


class OneWaits:
    """A client with a token for prompt "a", and another for "b".

    Its requests for the first fail as soon as one for the second has begun, which waits.
    """

    def __init__(self) -> None:
        self.has_begun, self.released, self.has_ended = (threading.Event() for _ in range(3))

    def tokenize(self, messages: Any, *_: Any) -> Any:
        return [TextToken(ord(messages[0].content) - ord("a") + 1, "t")]

    def generate(self, sequence: Any, *_: Any, **__: Any) -> Any:
        if sequence[0] == 1:
            assert self.has_begun.wait(240)
            raise ConfigError("failed")
        self.has_begun.set()
        self.released.wait(240)
        self.has_ended.set()
        raise ConfigError("released")
