"""What a router costs, undilated: its CPU time per emitted token at a stated tau, and where it goes."""

import json
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.progress import Advance
from benchmarks.simulate.plan import AGREEMENT, FLY, LANGUAGE, PLAIN, SETTINGS
from benchmarks.simulate.profile import Profile, make_profile
from benchmarks.summary import share
from benchmarks.telemetry.settings import METRICS
from benchmarks.telemetry.system import Router, router_process, simulated_service
from fly.response import Statistics
from flyserve.client import Client

ROUTER_SETTINGS = (PLAIN, FLY)
_PROFILED = "benchmarks.simulate.profiled"
_COSTS = "base_s: 0.0, per_token_s: 0.0, per_token_above_s: 0.0"
_SIMULATED = f"{_COSTS}, response_tokens: {list(LANGUAGE.response_tokens)}, end_id: {LANGUAGE.end_id}"


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """How much is measured.

    Attributes:
        launches: Times that all processes are restarted.
        blocks: Of requests, of each setting in each launch, after one that is not counted.
        requests: Of one block.
        at_once: Requests in flight.
        profile_blocks: Of each setting, at another router that is watched.
    """

    launches: int = 3
    blocks: int = 5
    requests: int = 48
    at_once: int = 8
    profile_blocks: int = 5

    def quick(self) -> "RouterPlan":
        """As much as shows that everything works."""
        return RouterPlan(launches=1, blocks=2, requests=8, at_once=4, profile_blocks=2)

    @property
    def counted(self) -> int:
        """Blocks of the measurement, those that warm up included."""
        return len(ROUTER_SETTINGS) * self.launches * (1 + self.blocks)

    @property
    def watched(self) -> int:
        """Blocks of the profile."""
        return len(ROUTER_SETTINGS) * self.profile_blocks


@dataclass(frozen=True, slots=True)
class Block:
    """Requests to one router.

    Attributes:
        cpu_ms: Of its process, per emitted token.
        tau: Tokens emitted in rounds with a draft, by such rounds.
        rounds: Of all kinds.
    """

    setting: str
    cpu_ms: float
    tokens: int
    rounds: int
    tau: float


def measure_router(plan: RouterPlan, prompt_tokens: int, advance: Advance) -> list[Block]:
    """Blocks of every setting by turns, as a router is deployed: with metrics, without traces.

    Raises:
        FlyServeError: Something could not be started, or a request failed.
    """
    blocks = []
    for _ in range(plan.launches):
        with _router() as router:
            for number in range(-1, plan.blocks):
                for setting in ROUTER_SETTINGS:
                    block = _block(router, setting, plan, prompt_tokens, number)
                    advance()
                    if number >= 0:
                        blocks.append(block)
    return blocks


def profile_router(plan: RouterPlan, prompt_tokens: int, advance: Advance) -> dict[str, Profile]:
    """Where the CPU time goes, by setting.

    Raises:
        FlyServeError: Something could not be started, or a request failed.
    """
    found = {}
    for setting in ROUTER_SETTINGS:
        with TemporaryDirectory(prefix="flyserve-") as folder:
            stacks, tokens = Path(folder) / "stacks.json", 0
            with _router((_PROFILED, str(stacks))) as router:
                _block(router, setting, plan, prompt_tokens, 0)
                os.kill(router.pid, signal.SIGUSR1)
                before_s = router.cpu_s()
                for number in range(plan.profile_blocks):
                    tokens += _block(router, setting, plan, prompt_tokens, number).tokens
                    advance()
                cpu_s = router.cpu_s() - before_s
            seen = json.loads(stacks.read_text(encoding="utf-8"))
            found[setting] = make_profile(seen, 1e3 * cpu_s / tokens)
    return found


@contextmanager
def _router(program: tuple[str, ...] = ("router",)) -> Iterator[Router]:
    """Before a target and a drafter whose forwards take no time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="flyserve-")))

        def start(module: str, simulated: str) -> str:
            return stack.enter_context(simulated_service(folder, module, f"{{{simulated}}}"))

        target = start("services.target", _SIMULATED)
        drafter = start("services.drafter", f"{_SIMULATED}, agreement: {AGREEMENT}")
        yield stack.enter_context(router_process(folder / "router", target, drafter, dict(METRICS), program))


def _block(router: Router, setting: str, plan: RouterPlan, prompt_tokens: int, seed: int) -> Block:
    source, words = random.Random(seed), range(LANGUAGE.first_word, LANGUAGE.vocab_size)
    prompts = [source.choices(words, k=prompt_tokens) for _ in range(plan.requests)]
    with Client(router.address, retries=0) as client, ThreadPoolExecutor(plan.at_once) as pool:

        def generate(prompt: list[int]) -> Statistics:
            chunks = list(client.stream(prompt, 512, speculation=SETTINGS[setting]))
            statistics = chunks[-1].statistics
            assert statistics is not None
            return statistics

        started_s = router.cpu_s()
        ended = list(pool.map(generate, prompts))
        cpu_s = router.cpu_s() - started_s
    tokens = sum(each.emitted for each in ended)
    draft_rounds = sum(each.draft_rounds for each in ended)
    return Block(
        setting=setting,
        cpu_ms=1e3 * cpu_s / tokens,
        tokens=tokens,
        rounds=sum(each.rounds for each in ended),
        tau=share(sum(each.tau * each.draft_rounds for each in ended), draft_rounds),
    )
