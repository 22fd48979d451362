"""Users of the HTTP API for `locust -f`: they share prompts, and equal prompts must get equal responses."""

import json
import random
from typing import Any

from locust import HttpUser, events, task

PROMPTS = ("the fox", "the dog", "over the lazy", "hello world", "brown")
RESPONSES: dict[str, str] = {}
ENOUGH = 150


@events.init.add_listener
def stop_when_enough(environment: Any, **event: Any) -> None:
    """Stop after `ENOUGH` requests, independent of the machine's speed."""

    def check(**event: Any) -> None:
        if environment.stats.total.num_requests >= ENOUGH:
            environment.runner.quit()

    environment.events.request.add_listener(check)


class Requester(HttpUser):
    """A user that sends requests without a pause, in a mode whose responses depend on the prompt alone."""

    def _body(self, stream: bool) -> dict[str, object]:
        self._prompt = random.choice(PROMPTS)
        messages = [{"role": "user", "content": self._prompt}]
        asked = {"model": "fake", "messages": messages, "max_tokens": 24, "temperature": 0, "stream": stream}
        return {**asked, "speculation": {"mode": "exact"}}

    @task(2)
    def whole(self) -> None:
        with self.client.post(
            "/v1/chat/completions", json=self._body(False), name="whole", catch_response=True
        ) as response:
            if response.status_code != 200:
                return
            answer = response.json()
            if answer["usage"]["completion_tokens"] != 24:
                response.failure(f"usage is {answer['usage']}")
            elif not self._is_as_before(answer["choices"][0]["message"]["content"]):
                response.failure("the response differs from the earlier one")

    @task(1)
    def streamed(self) -> None:
        with self.client.post(
            "/v1/chat/completions", json=self._body(True), name="streamed", stream=True, catch_response=True
        ) as response:
            if response.status_code != 200:
                return
            *chunks, done = [line.removeprefix(b"data: ") for line in response.iter_lines() if line]
            deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
            if done != b"[DONE]" or not self._is_as_before("".join(delta["content"] for delta in deltas)):
                response.failure("the response differs from the earlier one, or not all of it")

    def _is_as_before(self, text: str) -> bool:
        return RESPONSES.setdefault(self._prompt, text) == text
