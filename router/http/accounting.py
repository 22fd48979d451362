"""Token counts and acceptance of drafts over all choices of one HTTP request."""

from collections import Counter

from fly.response import Chunk
from router.http.objects import (
    CompletionTokensDetails,
    Metrics,
    PromptTokensDetails,
    SpeculativeDecoding,
    Usage,
)


class Accounting:
    """The figures of one HTTP request, chunk by chunk."""

    def __init__(self) -> None:
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._cached: dict[int, int] = {}
        self._accepted = Counter[int]()
        self._drafted = self._longest = self._emitted = 0
        self._predicted = self._predicted_accepted = 0

    def add(self, chunk: Chunk, request: int) -> None:
        """Add a chunk of the request's prompt with the index `request`."""
        self._prompt_tokens += chunk.prompt_tokens
        self._completion_tokens += len(chunk.tokens)
        for each in chunk.rounds:
            if each.drafted:
                self._accepted[each.accepted] += 1
                self._drafted += each.drafted
                self._longest = max(self._longest, each.drafted)
        if chunk.statistics is not None:
            self._emitted += chunk.statistics.draft_round_tokens
            self._predicted += chunk.statistics.predicted
            self._predicted_accepted += chunk.statistics.predicted_accepted
            cached = chunk.statistics.cached_tokens
            self._cached[request] = min(cached, self._cached.get(request, cached))

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        prompt, completion = self._prompt_tokens, self._completion_tokens
        found = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        if not self._cached:
            return found
        accepted, rejected = self._predicted_accepted, self._predicted - self._predicted_accepted
        details = {
            "prompt_tokens_details": PromptTokensDetails(cached_tokens=sum(self._cached.values())),
            "completion_tokens_details": CompletionTokensDetails(
                accepted_prediction_tokens=accepted, rejected_prediction_tokens=rejected
            ),
        }
        return found.model_copy(update=details)

    @property
    def metrics(self) -> Metrics:
        """Acceptance of the drafts of all choices that have ended."""
        num_steps, most = self._accepted.total(), max(self._accepted, default=0)
        num_accepted = sum(accepted * number for accepted, number in self._accepted.items())
        return Metrics(
            speculative_decoding=SpeculativeDecoding(
                mean_acceptance_length=self._emitted / num_steps if num_steps else 0.0,
                draft_acceptance_rate=num_accepted / self._drafted if self._drafted else 0.0,
                acceptance_histogram=[self._accepted[accepted] for accepted in range(most + 1)],
                num_spec_steps=num_steps,
                num_accepted_draft_tokens=num_accepted,
                num_draft_tokens=self._drafted,
                num_spec_tokens=self._longest,
            )
        )
