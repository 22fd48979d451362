"""Trim vLLM's front end: keep log-probabilities as arrays, and those of a prompt for the last rows only.

vLLM makes a dictionary for every token of a prompt, in Python, with each request: a cost that grows with the
context. This module replaces the class that does so. It is imported only by `library.py`, after the version
was checked.
"""

from typing import Any

from vllm.v1.engine import output_processor
from vllm.v1.engine.logprobs import LogprobsProcessor

from services.engine.vllm.rows import ROWS_KEY, last_rows


class TrimmedLogprobs(LogprobsProcessor):  # type: ignore[misc]
    """Log-probabilities of one request, as `Rows`; those of other users of vLLM are left as they are."""

    num_rows: int | None = None

    @classmethod
    def from_new_request(cls, tokenizer: Any, request: Any) -> "TrimmedLogprobs":
        processor: TrimmedLogprobs = super().from_new_request(tokenizer, request)
        processor.num_rows = (request.sampling_params.extra_args or {}).get(ROWS_KEY)
        return processor

    def _update_sample_logprobs(self, logprobs_lists: Any) -> None:
        if self.num_rows is None:
            super()._update_sample_logprobs(logprobs_lists)
            return
        ids, logprobs, *_ = logprobs_lists
        self.logprobs.append(last_rows(ids, logprobs, len(ids), self.num_logprobs + 1))

    def _update_prompt_logprobs(self, prompt_logprobs_tensors: Any) -> None:
        if self.num_rows is None:
            super()._update_prompt_logprobs(prompt_logprobs_tensors)
            return
        ids, logprobs, *_ = prompt_logprobs_tensors
        self.prompt_logprobs = last_rows(ids, logprobs, self.num_rows, self.num_prompt_logprobs + 1)


def install() -> None:
    """Let vLLM's output processor use `TrimmedLogprobs`."""
    output_processor.LogprobsProcessor = TrimmedLogprobs
