"""Messages of the internal streams, in their domain form.

Those of every step are named tuples: making one takes a third of the time of a frozen dataclass.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceUpdate, StaleReason
from flyserve.core.types import EntropyEstimator, PositionLogprobs, SparseDistribution


class Role(StrEnum):
    """Tier of a service."""

    TARGET = "target"
    DRAFTER = "drafter"
    SUB_DRAFTER = "sub_drafter"


@dataclass(frozen=True, slots=True)
class ForwardCosts:
    """Seconds of a forward of one sequence, measured when the model was loaded.

    Attributes:
        decode_s: Forward of one token.
        verify_s: Forward of `VERIFIED_TOKENS` tokens.
    """

    decode_s: float
    verify_s: float

    @property
    def rows_add_up(self) -> bool:
        """True if rows share so little of a forward that sequences gain little by sharing forwards."""
        return self.verify_s >= _ADDED_UP * self.decode_s


_ADDED_UP = 5
"""Forwards of one token that one of `VERIFIED_TOKENS` takes at least where its rows add up.

Where weights are read once for all rows, it takes 1 to 3.
"""
VERIFIED_TOKENS = 16
"""Tokens of the forward that `ForwardCosts.verify_s` measures: a draft of 15 and the token before it."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Model of a replica; the handshake between router and replica.

    Attributes:
        role: Tier of the replica.
        model_id: Model id: a folder's name, or a hub id as configured.
        weight_fingerprint: Hash of the weights; replicas with the same hash return the same results.
        architecture: transformers architecture; `suffix` for the look-up engine.
        token_map_hash: Hash of the token-to-id map; empty if the service accepts any.
        vocab_size: Exclusive upper limit of token ids.
        context_length: Longest sequence in tokens; 0 is unlimited, or counted in other tokens.
        dtype: Compute type, `float32` or `bfloat16`.
        shards: Ranks that share the replica.
        kv_capacity: Total KV cache positions.
        version: Version of FlyServe.
        max_sequences: Sequences that the replica holds at once; 0 is unlimited.
        engine: Engine that runs the model; empty for `builtin` and for look-up engines. All targets of a
            deployment have the same one.
        engine_version: Version of an engine other than FlyServe's own.
        quantization: Method by which the engine quantized the weights; empty if they are as they were.
        costs: Durations of its forwards; None if they were not measured.
        standalone_sequences: Sequences that a drafter decodes by itself at once, without a target; 0 if it
            does not, as a look-up engine.
        vocabulary_way: Way in which a drafter maps its own vocabulary to the target's, which the other fields
            describe; empty if it maps none.
        vocabulary_overlap: Share of such a drafter's tokens that the target has too.
        row_invariant: A position has the same bits whatever it is computed with, by a check at load.
        kernels: Hash of the kernels that compute it; replicas with the same weights, kernels and row
            invariance return the same bits.
        plain_only: Reason why the model decodes one token after another alone, and no draft can be verified;
            empty if drafts can.
    """

    role: Role
    model_id: str
    weight_fingerprint: str
    architecture: str
    token_map_hash: str
    vocab_size: int
    context_length: int
    dtype: str
    shards: int
    kv_capacity: int
    version: str
    max_sequences: int = 0
    engine: str = ""
    engine_version: str = ""
    quantization: str = ""
    costs: ForwardCosts | None = None
    standalone_sequences: int = 0
    vocabulary_way: str = ""
    vocabulary_overlap: float = 0.0
    row_invariant: bool = False
    kernels: str = ""
    plain_only: str = ""

    @property
    def looks_up(self) -> bool:
        """True for a look-up engine, which has no weights."""
        return not self.weight_fingerprint


class Load(NamedTuple):
    """Current load of a replica, and totals since it started.

    A look-up service counts tokens in its indexes as used KV positions, and cached responses as cached ones.

    Attributes:
        sequences: Number of open sequences, without those that wait.
        queued: Number of sequences that wait for a place or for memory.
        kv_used: KV positions that open sequences hold.
        kv_capacity: Total KV positions.
        kv_cached: KV positions that only closed sequences used; any other use may evict them.
        prefill_tokens: Tokens computed without a result, since the replica started.
        reused_tokens: Tokens whose KV was reused from another sequence, since the replica started.
        preemptions: Sequences that lost their memory to others and had to be computed again, since then.
    """

    sequences: int = 0
    queued: int = 0
    kv_used: int = 0
    kv_capacity: int = 0
    kv_cached: int = 0
    prefill_tokens: int = 0
    reused_tokens: int = 0
    preemptions: int = 0


class StepTimes(NamedTuple):
    """Duration and work of one step.

    Attributes:
        queue_ns: Time from its arrival to the start of its first forward.
        forward_ns: Time inside forwards (of the whole batch).
        batch_size: Largest number of sequences in one of these forwards.
        batch_tokens: Largest number of token rows in one of these forwards.
        prefill_tokens: Tokens of this sequence that were computed without a result.
        reused_tokens: Tokens of this sequence whose KV was reused from another one with the same prefix.
    """

    queue_ns: int = 0
    forward_ns: int = 0
    batch_size: int = 0
    batch_tokens: int = 0
    prefill_tokens: int = 0
    reused_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """First message of a sequence's stream.

    Attributes:
        prompt_length: Prompt length in tokens; later positions are response.
        sampling: Sampling parameters, with the complete list of stop token ids.
        priority: Higher values run first when work queues.
        deadline_ms: Milliseconds from now, at most one day; 0 is no deadline.
        cache_salt: Prefixes and memories are shared only between sequences with the same salt.
        entropy: Estimator that a target uses.
        num_logprobs: Number of most likely tokens whose log-probabilities a target returns per position; None
            returns none.
        without_entropies: True if a target may leave out the entropies.
        without_sub_drafter: True if a drafter must not use its sub-drafter.
        grammar: Constraint on the response, as the library of grammars takes it; "" is none.
        max_new_tokens: Most tokens after the prompt, to estimate the memory that is needed; 0 if unknown.
        standalone: True if no target verifies a drafter's drafts: they are the response.
        without_copies: True if no draft may copy an earlier response: a drafter's model computes every token,
            and a look-up engine searches the sequence alone.
        traceparent: Trace of which the sequence is part (W3C); "" for none.
    """

    request_id: str
    prompt_length: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    deadline_ms: int = 0
    cache_salt: str = ""
    entropy: EntropyEstimator = EntropyEstimator.TOP_K
    without_sub_drafter: bool = False
    num_logprobs: int | None = None
    max_new_tokens: int = 0
    without_entropies: bool = False
    standalone: bool = False
    grammar: str = ""
    with_gaps: bool = False
    without_copies: bool = False
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    """The sequence waits for a place or for memory; `Opened` follows."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The sequence has its place and memory, after `Queued`; or a forward of its long prompt has ended."""


@dataclass(frozen=True, slots=True)
class Close:
    """Last message of a stream.

    Attributes:
        update: Final sequence, for a service that keeps finished responses; it gets no response.
    """

    update: SequenceUpdate | None = None


class Stale(NamedTuple):
    """The server does not have the kept tokens: the client must replay from `keep = 0` on the same stream."""

    step_id: int
    reason: StaleReason


class VerifyStep(NamedTuple):
    """Update the sequence, then score its last `num_drafts + 1` positions.

    Attributes:
        distributions: Distribution that each draft token was drawn from (coupling `rejection`); else empty.
    """

    update: SequenceUpdate
    num_drafts: int
    distributions: tuple[SparseDistribution, ...] = ()


class Extend(NamedTuple):
    """Update the sequence, then decode at most `max_tokens` tokens after its end; a stop token ends it.

    The answer is a `Verification` with one position per token; the sequence keeps these tokens. A target may
    leave out their entropies if the step is `without_entropies`.
    """

    update: SequenceUpdate
    max_tokens: int
    without_entropies: bool = False


class Verification(NamedTuple):
    """Target's result after the token before the first draft token, then after each draft token.

    The answer to an `Extend` has one position per decoded token instead.

    Attributes:
        choices: Token that the target itself chooses, at `num_drafts + 1` positions.
        entropies: Entropy at these positions, in the estimator's unit; none if the stream or the step
            is without them.
        excluded_drafts: Indices of draft tokens that the sampling filters exclude.
        logprobs: One per choice if they were requested, else empty.
        gaps: Log-probability of the choice less that of the draft token, in nats, per draft token; empty
            unless the stream is with gaps.
    """

    step_id: int
    choices: tuple[int, ...]
    entropies: tuple[float, ...]
    excluded_drafts: frozenset[int] = frozenset()
    logprobs: tuple[PositionLogprobs, ...] = ()
    gaps: tuple[float, ...] = ()
    times: StepTimes = StepTimes()
    load: Load = Load()


class DraftStep(NamedTuple):
    """Update the sequence, then draft after it.

    Attributes:
        max_tokens: Most draft tokens; 0 only updates the sequence.
        end_at_stop: End the draft after a stop token (only if the rule never looks beyond it).
        snippet_tokens: Tokens of snippets to return in addition to the draft; 0 for none.
    """

    update: SequenceUpdate
    max_tokens: int
    end_at_stop: bool = False
    snippet_tokens: int = 0


class ProposalCounts(NamedTuple):
    """Use of the sub-drafter in one step of a drafter.

    Attributes:
        requested: Requests to the sub-drafter.
        late: Responses that arrived too late or never.
        invalid: Snippets with ids outside the vocabulary, and tokens that were not requested; left out.
    """

    requested: int = 0
    late: int = 0
    invalid: int = 0


class Draft(NamedTuple):
    """Draft, and how it was made.

    Attributes:
        tokens: Proposed tokens; may be fewer than requested, or none.
        forwards: Number of forwards of the drafter's model.
        sub_drafter_tokens: Number of these tokens that the sub-drafter supplied.
        distributions: Distribution that each token was drawn from (coupling `rejection`); else empty.
        proposals: Use of the sub-drafter.
        drafted_ahead: Number of these tokens that were drafted before the step arrived.
        dropped_ahead: Tokens that were drafted before the step arrived and that the step contradicted.
        snippets: Snippets of finished responses that contain the sequence's last n-grams; none is sent twice.
    """

    step_id: int
    tokens: tuple[int, ...]
    forwards: int = 0
    sub_drafter_tokens: int = 0
    distributions: tuple[SparseDistribution, ...] = ()
    times: StepTimes = StepTimes()
    load: Load = Load()
    proposals: ProposalCounts = ProposalCounts()
    drafted_ahead: int = 0
    dropped_ahead: int = 0
    snippets: tuple[tuple[int, ...], ...] = ()
