"""Known fields of bodies that an API does not serve: one table for completions, chats and responses.

A field is served (it belongs to the model of the body), ignored (it changes no response), or refused by name
unless it requests nothing. A hint, such as `reasoning_effort`, is served where the chat template can use it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from flyserve.core.request import POLICY_REMEDY

IGNORED = frozenset(
    (
        *("metadata", "user", "safety_identifier", "client_metadata", "access_programs"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_prompt"),
        *("parallel_tool_calls", "max_tool_calls", "include", "image"),
    )
)
"""Fields without effect on the response: accepted with any value."""

_EMPTY: tuple[Any, ...] = (False, 0, "", [], {})


class Unserved(NamedTuple):
    """A known field that is refused.

    Attributes:
        idle: Values that request nothing, in addition to null.
        remedy: Advice for a client that sends another value; "" without one.
    """

    idle: tuple[Any, ...] = _EMPTY
    remedy: str = ""

    def alternatives(self, value: Any) -> list[Any]:
        """Return the values that a client may send instead, as far as they are worth naming."""
        others = [each for each in self.idle if not _is_among(each, _EMPTY)]
        return [False, *others] if value is True and False in self.idle else others

    def requests_nothing(self, value: Any) -> bool:
        """Return True for a value that leaves everything as it is."""
        return value is None or _is_among(value, self.idle)


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    """Compare with values; a truth value does not equal a number here."""
    return value in [each for each in values if isinstance(each, bool) == isinstance(value, bool)]


def _like(kind: Unserved, *names: str) -> dict[str, Unserved]:
    return dict.fromkeys(names, kind)


UNSERVED: Mapping[str, Unserved] = {
    # OpenAI
    **_like(Unserved(), "audio", "background", "background_options", "context_management", "conversation"),
    **_like(Unserved(), "echo", "frequency_penalty", "logit_bias", "moderation"),
    **_like(Unserved(), "presence_penalty", "previous_response_id", "store", "suffix"),
    **_like(Unserved(), "tools", "top_logprobs", "verdicts", "verbosity", "web_search_options"),
    **_like(Unserved((*_EMPTY, "none", "auto")), "tool_choice"),
    "functions": Unserved(_EMPTY, "use tools in a chat or in /v1/responses"),
    "function_call": Unserved((*_EMPTY, "none", "auto"), "use tool_choice in a chat or in /v1/responses"),
    "logprobs": Unserved(_EMPTY, "use include and top_logprobs in /v1/responses"),
    **_like(Unserved((*_EMPTY, "disabled")), "truncation"),
    **_like(Unserved((1,)), "n"),
    "best_of": Unserved((1,), "use n"),
    "modalities": Unserved((*_EMPTY, ["text"])),
    "reasoning_effort": Unserved(("none",), "use reasoning.effort in /v1/responses"),
    "text": Unserved(_EMPTY, "use response_format"),
    "reasoning": Unserved(_EMPTY, "use reasoning_effort"),
    "input": Unserved(_EMPTY, "use messages in a chat, prompt in a completion"),
    "instructions": Unserved(_EMPTY, "use a system message"),
    "messages": Unserved(_EMPTY, "use input in /v1/responses, prompt in /v1/completions"),
    "prompt": Unserved(_EMPTY, "use messages in a chat, input in /v1/responses"),
    "max_tokens": Unserved((), "use max_output_tokens"),
    "max_completion_tokens": Unserved(
        (), "use max_output_tokens in /v1/responses, max_tokens in /v1/completions"
    ),
    "max_output_tokens": Unserved((), "use max_completion_tokens in a chat, max_tokens in a completion"),
    "response_format": Unserved(
        (*_EMPTY, {"type": "text"}), "use text.format in /v1/responses, or structured_outputs"
    ),
    # vLLM, SGLang
    **_like(Unserved(), "add_special_tokens", "allowed_token_ids", "bad_words", "chat_template", "documents"),
    **_like(
        Unserved(),
        "chat_template_kwargs",
        "coupling",
        "continue_final_message",
        "early_stopping",
        "ignore_eos",
    ),
    **_like(
        Unserved(), "include_stop_str_in_output", "logits_processors", "min_tokens", "mm_processor_kwargs"
    ),
    **_like(
        Unserved(), "prediction", "return_token_ids", "return_tokens_as_token_ids", "stop", "stop_token_ids"
    ),
    **_like(Unserved(), "structured_outputs", "thinking", "use_beam_search"),
    **_like(Unserved(()), "prompt_logprobs", "thinking_token_budget", "truncate_prompt_tokens"),
    **_like(Unserved((True,)), "add_generation_prompt", "include_reasoning", "separate_reasoning"),
    **_like(Unserved((True,)), "skip_special_tokens", "spaces_between_special_tokens", "stream_reasoning"),
    **_like(Unserved((0, 1)), "length_penalty", "repetition_penalty"),
    **_like(Unserved((), "use structured_outputs.grammar"), "guided_grammar", "ebnf"),
    **_like(Unserved((), "use structured_outputs.regex"), "guided_regex", "regex"),
    **_like(Unserved((), "use response_format or structured_outputs.json"), "guided_json", "json_schema"),
    **_like(Unserved(), "guided_decoding_backend", "guided_whitespace_pattern"),
    "guided_choice": Unserved((), "use structured_outputs.choice"),
    "guided_json_object": Unserved(_EMPTY, "use response_format"),
}
"""Fields of OpenAI, vLLM and SGLang, and of the other APIs here, by name."""

REMOVED = {"speculation.draft_length.policy": POLICY_REMEDY}
"""Advice for fields that an earlier version had, by path."""
