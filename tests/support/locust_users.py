"""Users of the HTTP face for `locust -f`: they ask what others ask, too, and must be told the same."""

import json
import random
from typing import Any

from locust import HttpUser, events, task

PROMPTS = ("the fox", "the dog", "over the lazy", "hello world", "brown")
HEARD: dict[str, str] = {}
ENOUGH = 150


@events.init.add_listener
def stop_when_enough(environment: Any, **told: Any) -> None:
    """However fast the machine is."""

    def look(**told: Any) -> None:
        if environment.stats.total.num_requests >= ENOUGH:
            environment.runner.quit()

    environment.events.request.add_listener(look)


class Asker(HttpUser):
    """Asks without a pause, in a mode whose answers depend on the prompt alone."""

    def _body(self, stream: bool) -> dict[str, object]:
        self._prompt = random.choice(PROMPTS)
        messages = [{"role": "user", "content": self._prompt}]
        asked = {"model": "fake", "messages": messages, "max_tokens": 24, "temperature": 0, "stream": stream}
        return {**asked, "speculation": {"mode": "exact"}}

    @task(2)
    def whole(self) -> None:
        with self.client.post(
            "/v1/chat/completions", json=self._body(False), name="whole", catch_response=True
        ) as told:
            if told.status_code != 200:
                return
            answer = told.json()
            if answer["usage"]["completion_tokens"] != 24:
                told.failure(f"usage is {answer['usage']}")
            elif not self._is_as_before(answer["choices"][0]["message"]["content"]):
                told.failure("another answer than before")

    @task(1)
    def streamed(self) -> None:
        with self.client.post(
            "/v1/chat/completions", json=self._body(True), name="streamed", stream=True, catch_response=True
        ) as told:
            if told.status_code != 200:
                return
            *chunks, done = [line.removeprefix(b"data: ") for line in told.iter_lines() if line]
            deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
            if done != b"[DONE]" or not self._is_as_before("".join(delta["content"] for delta in deltas)):
                told.failure("another answer than before, or not all of it")

    def _is_as_before(self, text: str) -> bool:
        return HEARD.setdefault(self._prompt, text) == text
