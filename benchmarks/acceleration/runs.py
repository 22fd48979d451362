"""One response under one setting, as it is measured and kept."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fly.request import SamplingParams, SpeculationParams
from fly.response import Statistics
from flyserve.client import Client

_TIMEOUT_S = 300.0

Runs = Mapping[str, Sequence["Run"]]
"""By the name of the setting; all have the same prompts and repetitions, in one order."""


@dataclass(frozen=True, slots=True)
class Run:
    """One response.

    Attributes:
        prompt: Its number.
        repetition: How often the prompt came before.
        seconds: From the call to the whole response, as the client sees it.
        statistics: As the server reports them.
    """

    prompt: int
    repetition: int
    seconds: float
    statistics: Statistics

    @property
    def tokens_per_s(self) -> float:
        return self.statistics.emitted / self.seconds


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, but for the prompt.

    Attributes:
        client: Of the deployment.
        speculation: How.
        max_new_tokens: At most.
        ignore_eos: Just as many.
    """

    client: Client
    speculation: SpeculationParams
    max_new_tokens: int
    ignore_eos: bool = False

    def run(self, prompt: Sequence[int], number: int, repetition: int, cache_salt: str) -> Run:
        """Asks it, greedily.

        Raises:
            FlyServeError: The request was rejected.
        """
        start = time.perf_counter()
        response = self.client.generate(
            prompt,
            self.max_new_tokens,
            SamplingParams(ignore_eos=self.ignore_eos),
            self.speculation,
            timeout_s=_TIMEOUT_S,
            cache_salt=cache_salt,
        )
        return Run(number, repetition, time.perf_counter() - start, response.statistics)


def runs_as_data(runs: Mapping[str, Iterable[Run]]) -> dict[str, list[dict[str, Any]]]:
    """Plain data for JSON."""
    return {name: [asdict(run) for run in measured] for name, measured in runs.items()}


def runs_from_data(data: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, list[Run]]:
    """The reverse."""
    return {
        name: [Run(**{**run, "statistics": Statistics(**run["statistics"])}) for run in measured]
        for name, measured in data.items()
    }
