"""Requests to vLLM and their answers, in our own types."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fly.messages import StepTimes
from services.engine.vllm.library import Library
from services.engine.vllm.rows import ROWS_KEY, Rows


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Tokens to score or to continue.

    Attributes:
        tokens: The whole sequence, at least one token.
        num_candidates: Most likely tokens to return per position; None returns no scores.
        num_rows: Tokens at its end, after the first, whose positions are scored as well.
        max_tokens: Most tokens to decode, at least 1.
        ending_ids: Tokens that end the decoding.
        cache_salt: KV is shared only between requests with the same salt.
        priority: Higher values run first.
        name: Name in vLLM's logs.
        part_tokens: Tokens to return at a time, after the first one; 0 returns all at the end.
    """

    tokens: Sequence[int]
    num_candidates: int | None
    num_rows: int = 0
    max_tokens: int = 1
    ending_ids: Collection[int] = ()
    cache_salt: str = ""
    priority: int = 0
    name: str = ""
    part_tokens: int = 0

    @property
    def first_row(self) -> int:
        """Number of tokens before the first scored position's own token: as many may come from the cache."""
        return len(self.tokens) - 1 - self.num_rows

    def prompt(self) -> dict[str, Any]:
        """Return vLLM's prompt: token ids that need no further processing."""
        salt = {"cache_salt": self.cache_salt} if self.cache_salt else {}
        return {"type": "token", "prompt_token_ids": list(self.tokens), **salt}

    def params(self, library: Library, reads_cache: bool = True) -> Any:
        """Return vLLM's sampling parameters: greedy, with raw log-probabilities."""
        return library.params_class(
            temperature=0.0,
            max_tokens=self.max_tokens,
            stop_token_ids=sorted(self.ending_ids),
            ignore_eos=True,  # the sequence's stop tokens are complete
            logprobs=self.num_candidates,
            prompt_logprobs=self.num_candidates if self.num_rows else None,
            detokenize=False,
            skip_reading_prefix_cache=not reads_cache,
            output_kind=library.delta if self.part_tokens else library.final_only,
            stream_interval=self.part_tokens or None,
            extra_args={ROWS_KEY: self.num_rows},
        )


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """Scores and tokens of a finished request.

    Attributes:
        rows: Scores of the wanted rows, then one row per decoded token; None if none were wanted.
        tokens: Decoded tokens.
        num_computed: Token rows that were computed: those of the prompt that the cache did not hold, and one
            for each decoded token after the first.
        num_cached: Tokens of the prompt that the cache held.
        times: Time in vLLM's queue and since then.
    """

    rows: Rows | None
    tokens: tuple[int, ...]
    num_computed: int
    num_cached: int
    times: StepTimes

    @classmethod
    def of(cls, request: TokenRequest, output: Any) -> "TokenAnswer":
        """Return the answer in vLLM's final output of a request, or the part in one of its outputs."""
        decoded = output.outputs[0]
        tokens, num_cached = tuple(decoded.token_ids), output.num_cached_tokens or 0
        return cls(
            rows=None if request.num_candidates is None else _rows(request, output),
            tokens=tokens,
            num_computed=len(request.tokens) - num_cached + len(tokens) - 1,
            num_cached=num_cached,
            times=_times(output.metrics),
        )


def _rows(request: TokenRequest, output: Any) -> Rows:
    decoded = list(output.outputs[0].logprobs)
    parts = [output.prompt_logprobs, *decoded] if request.num_rows else decoded
    width = 1 + (request.num_candidates or 0)
    assert all(part.ids.shape[1] == width for part in parts), "rows lack candidates"
    return Rows.joined(parts)


def _times(metrics: Any) -> StepTimes:
    if metrics is None:
        return StepTimes()
    queued_s = max(0.0, metrics.scheduled_ts - metrics.queued_ts)
    computed_s = max(0.0, metrics.last_token_ts - metrics.scheduled_ts)
    return StepTimes(queue_ns=int(queued_s * 1e9), forward_ns=int(computed_s * 1e9), batch_size=1)
