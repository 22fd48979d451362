"""A request for text: prompt, sampling, speculation; for client, wire, HTTP API and router."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from flyserve.core.grammar import Grammar
from flyserve.core.spans import Span
from flyserve.core.types import Coupling, EntropyEstimator, Mode, TailPolicy

LEAST_TEMPERATURE = 1e-5
"""Smallest temperature that is sampled, as in vLLM: 1 by a much smaller one is infinite in float32."""
MOST_TEMPERATURE = 1e6
"""Largest temperature: all tokens are nearly as likely there, and 1 by a much larger one is 0 in float32."""
LEAST_TOP_P = 1e-9
"""Smallest nucleus: no vocabulary is so large that it has more than the most likely token."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one sequence's tokens from the logits; temperature 0 is greedy.

    Attributes:
        temperature: Softmax temperature; 0 takes the argmax. Below `LEAST_TEMPERATURE` it counts as 0, above
            `MOST_TEMPERATURE` as that.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Nucleus: keep the smallest set of tokens whose probability reaches it; 0 keeps the most likely
            token. Below `LEAST_TOP_P` it counts as that.
        min_p: Keep tokens at least this many times as likely as the likeliest; 0 keeps all.
        repetition_penalty: Divides (positive) or multiplies (negative) the logit of tokens seen in prompt or
            response.
        presence_penalty: Subtracted once from the logit of tokens seen in the response.
        frequency_penalty: Subtracted from the logit per occurrence in the response.
        logit_bias: Added to the logit of each listed token id.
        min_tokens: Response tokens before which no stop token is chosen, and in which no stop string ends.
        ignore_eos: Stop tokens do not end the response.
        stop_token_ids: Tokens that end the response; their text is not part of it. The router adds the
            model's end-of-sequence ids.
        seed: Seed of the sampling noise. If it is None, the router draws one and returns it in the
            statistics. Choices after the first have their own seeds, derived from it.
        coupling: Relation between the random choices of drafter and target.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    coupling: Coupling = Coupling.SHARED_NOISE

    def __post_init__(self) -> None:
        temperature, top_p = self.temperature, self.top_p
        if isinstance(temperature, int | float) and 0.0 < temperature < math.inf:
            sampled = min(temperature, MOST_TEMPERATURE) if temperature >= LEAST_TEMPERATURE else 0.0
            object.__setattr__(self, "temperature", sampled)
        if isinstance(top_p, float) and 0.0 < top_p < LEAST_TOP_P:
            object.__setattr__(self, "top_p", LEAST_TOP_P)

    @property
    def has_penalties(self) -> bool:
        """True if tokens are chosen with regard to those before them."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def needs_distributions(self) -> bool:
        """True if a draft is verified together with the distributions that it was drawn from."""
        return self.temperature > 0 and self.coupling is Coupling.REJECTION

    @property
    def ending_ids(self) -> frozenset[int]:
        """Tokens that end the response: none under `ignore_eos`."""
        return frozenset() if self.ignore_eos else frozenset(self.stop_token_ids)


POLICY_REMEDY = "all drafts have draft_length.max tokens; draft_length.max_sequences ends drafts under load"
"""Advice where a policy of the draft length is still set."""


@dataclass(frozen=True, slots=True)
class DraftLength:
    """Length of drafts; None takes the deployment's default.

    Attributes:
        max: Draft tokens per round; 0 drafts nothing.
    """

    max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOverrides:
    """Changes to a `FlyRule`, by the names of its fields; None keeps the rule's value.

    Attributes:
        window: Draft tokens after a mismatch that must all match for it to be accepted.
        threshold: Entropy of the target below which a mismatch is rejected, in the unit of `entropy`.
        tail: Treatment of a mismatch whose window reaches beyond the draft: `reject` or `carry`.
        carry_after: Matches that must follow a mismatch before its window is carried; at most `window`.
        guard_stops: Never rescue or overrule a stop token, and let no window reach across one.
        guard_excluded: Never rescue a draft token that the sampling filters exclude.
        strict_prefix_tokens: Tokens at the start of a response that are decoded exactly.
        entropy: Estimator of the target's entropy: `top_k` or `normalized`.
        max_logprob_gap: Never rescue a draft token whose log-probability by the target is further below that
            of its own choice than this, in nats.
        reproducible_drafts: Let drafts depend on the request alone: wait for the draft of every round, the
            first one included; all have the same length, and no draft copies an earlier response.
    """

    window: int | None = None
    threshold: float | None = None
    tail: TailPolicy | None = None
    carry_after: int | None = None
    guard_stops: bool | None = None
    guard_excluded: bool | None = None
    strict_prefix_tokens: int | None = None
    entropy: EntropyEstimator | None = None
    max_logprob_gap: float | None = None
    reproducible_drafts: bool | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Changed fields of the rule with their new values."""
        values = {each.name: getattr(self, each.name) for each in fields(RuleOverrides)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationParams(RuleOverrides):
    """Speculation of one request; None takes the deployment's default.

    Attributes:
        mode: Decoding mode.
        preset: Name of the rule that mode fly starts from; the other fields of the rule change it.
        draft_length: Length of drafts.
        sub_drafter: True if the drafter may use its sub-drafter.
        exact_in: Kinds of text that mode fly decodes exactly, in addition to those of the deployment.
    """

    mode: Mode | None = None
    preset: str | None = None
    draft_length: DraftLength = field(default_factory=DraftLength)
    sub_drafter: bool | None = None
    exact_in: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message; its role is system, user, assistant, or another one that the chat template supports."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ReceivedChoice:
    """Received part of one choice of a response whose stream broke.

    Attributes:
        kernels: Last kernels that a chunk of the choice named; "" accepts any.
    """

    index: int
    token_ids: tuple[int, ...]
    is_finished: bool = False
    kernels: str = ""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Received part of a response whose stream broke.

    Attributes:
        choices: Choices of which at least one chunk was received.
        weight_fingerprint: Fingerprint of the weights that began the response; "" accepts any.
    """

    choices: tuple[ReceivedChoice, ...]
    weight_fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParams:
    """Fields that a request keeps after it is checked.

    Attributes:
        request_id: For logs; the router draws one if it is empty.
        stop: The response ends before the first of these strings.
        priority: Higher values run first when work queues.
        cache_salt: Cached prefixes and memories are shared only between requests with the same salt.
        n: Number of choices, decoded in parallel.
        logprobs: Number of most likely tokens whose log-probabilities are returned per position; None returns
            none.
        prompt_logprobs: The same for the positions of the prompt, whose tokens are then returned first.
        evidence: Return the evidence of every round: drafts, the target's choices, entropies and gaps.
        fills_context: True if the client set no number of new tokens, so that the response may fill the
            context: memory is reserved as it grows. No field of the wire: over gRPC a client sets a number.
    """

    request_id: str = ""
    stop: tuple[str, ...] = ()
    priority: int = 0
    cache_salt: str = ""
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    evidence: bool = False
    fills_context: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest(RequestParams):
    """One prompt and how to continue it, as the client sends it; nothing is checked yet.

    Attributes:
        prompt: Text, or token ids.
        max_new_tokens: None takes the deployment's default; 0 generates nothing.
        prediction: Text that the response is expected to resemble; drafts are taken from it. It never changes
            what may be accepted. "" is none.
        grammar: Constraint on the text of the response; None is none.
        resume: Received part of the response, if its stream broke.
    """

    prompt: str | tuple[int, ...]
    max_new_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    prediction: str = ""
    grammar: Grammar | None = None
    resume: Resumption | None = None

    @property
    def prompt_field(self) -> str:
        """Name of the message's field that holds the prompt."""
        return "prompt" if isinstance(self.prompt, str) else "prompt_token_ids"
