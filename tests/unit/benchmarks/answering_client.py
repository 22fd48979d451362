"""A client that returns the right answers, and some wrong ones in mode fly."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from demo.tasks import Task
from flyserve.core.request import SpeculationParams
from flyserve.core.response import Choice, Response, Statistics
from flyserve.core.types import FinishReason, Mode, Token, Verdict


class AnsweringClient:
    """Returns right answers; in mode fly it rescues one token, and problems with even numbers are wrong."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()
        self.most_at_once = 0
        self._answers = {f"{task.prompt}\n": task for task in tasks}
        self._running = 0
        self._lock = threading.Lock()

    def generate(
        self, prompt: str, length: int, sampling: Any, speculation: SpeculationParams, **_: Any
    ) -> Response:
        with self._lock:
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            self.asked[prompt, hash(repr(speculation) + repr(sampling))] += 1
        threading.Event().wait(0.001)
        with self._lock:
            self._running -= 1
        return self._respond(self._answers[prompt], speculation)

    def _respond(self, task: Task, speculation: SpeculationParams) -> Response:
        is_fly = speculation.mode is Mode.FLY
        answer = "0" if is_fly and int(task.id[-1]) % 2 == 0 else task.answer
        tokens = (
            Token(1, Verdict.EXACT, 1, 0.1, "Then"),
            Token(2, Verdict.RESCUED if is_fly else Verdict.BONUS, 3, 0.9, " 7", " 8" if is_fly else ""),
            Token(4, Verdict.CORRECTED, 4, 0.0, f". Answer: {answer}"),
        )
        statistics = Statistics(
            emitted=3,
            rounds=2,
            draft_rounds=int(is_fly),
            tau=3.0 * is_fly,
            rescued=int(is_fly),
            rejected_by_gate=1,
        )
        text = "".join(token.text for token in tokens)
        choice = Choice(
            index=0, text=text, tokens=tokens, finish_reason=FinishReason.STOP_TOKEN, statistics=statistics
        )
        return Response(request_id="r", choices=(choice,), prompt_tokens=5)
