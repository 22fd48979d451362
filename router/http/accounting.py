"""Token counts and acceptance of drafts over all choices of one HTTP request."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from flyserve.core.response import Chunk, Round
from router.generation.response import MessageChunk
from router.http.objects import (
    CompletionTokensDetails,
    Metrics,
    PromptTokensDetails,
    SpeculativeDecoding,
    Usage,
)


class AcceptedDrafts:
    """Accepted tokens of each draft of one choice.

    A carried window is decided in a later round. Its tokens count for the draft that they are from, so no
    draft has more accepted tokens than it has tokens.
    """

    def __init__(self) -> None:
        self._lengths = list[int]()
        self._accepted = list[int]()

    def add(self, each: Round) -> None:
        """Add the next round."""
        if each.drafted:
            self._lengths.append(each.drafted)
            self._accepted.append(0)
        rest = each.accepted
        for index in range(len(self._lengths) - 1, -1, -1):
            if not rest:
                break
            counted = min(rest, self._lengths[index] - self._accepted[index])
            self._accepted[index] += counted
            rest -= counted

    @property
    def lengths(self) -> Sequence[int]:
        """Length of each draft."""
        return self._lengths

    @property
    def accepted(self) -> Sequence[int]:
        """Accepted tokens of each draft."""
        return self._accepted


class Accounting:
    """The figures of one HTTP request, chunk by chunk.

    Attributes:
        num_ended: Choices that have ended.
    """

    def __init__(self) -> None:
        self.num_ended = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._cached: dict[int, int] = {}
        self._drafts = defaultdict[tuple[int, int], AcceptedDrafts](AcceptedDrafts)
        self._emitted = 0
        self._predicted = self._predicted_accepted = self._reasoning = 0

    def add(self, chunk: Chunk, request: int) -> None:
        """Add a chunk of the request's prompt with the index `request`."""
        self._prompt_tokens += chunk.prompt_tokens
        self._completion_tokens += len(chunk.tokens)
        drafts = self._drafts[request, chunk.choice_index]
        for each in chunk.rounds:
            drafts.add(each)
        if isinstance(chunk, MessageChunk):
            self._reasoning += chunk.parts.reasoning_tokens
        if chunk.statistics is not None:
            self.num_ended += 1
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
                reasoning_tokens=self._reasoning,
                accepted_prediction_tokens=accepted,
                rejected_prediction_tokens=rejected,
            ),
        }
        return found.model_copy(update=details)

    @property
    def metrics(self) -> Metrics:
        """Acceptance of the drafts of all choices that have ended."""
        drafts = self._drafts.values()
        accepted = Counter(number for each in drafts for number in each.accepted)
        lengths = [length for each in drafts for length in each.lengths]
        num_steps, num_drafted, longest = len(lengths), sum(lengths), max(lengths, default=0)
        num_accepted = sum(number * count for number, count in accepted.items())
        return Metrics(
            speculative_decoding=SpeculativeDecoding(
                mean_acceptance_length=self._emitted / num_steps if num_steps else 0.0,
                draft_acceptance_rate=num_accepted / num_drafted if num_drafted else 0.0,
                acceptance_histogram=[accepted[number] for number in range(longest + 1)],
                num_spec_steps=num_steps,
                num_accepted_draft_tokens=num_accepted,
                num_draft_tokens=num_drafted,
                num_spec_tokens=longest,
            )
        )
