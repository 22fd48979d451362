"""What the tiers tell each other: the domain form of the internal streams."""

from dataclasses import dataclass, field
from enum import StrEnum

from fly.sequence import SequenceUpdate, StaleReason
from fly.types import EntropyEstimator, Logprobs, SamplingParams, SparseDistribution


class Role(StrEnum):
    """Tier of a service."""

    TARGET = "target"
    DRAFTER = "drafter"
    SUB_DRAFTER = "sub_drafter"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a replica serves: the handshake between router and replica.

    Attributes:
        role: Its tier.
        model_id: As configured.
        weight_fingerprint: Hash of the weights; replicas with the same one give the same answers.
        architecture: transformers architecture; `ngram` or `suffix` for a look-up engine.
        token_map_hash: Hash of the token-to-id map; empty where the service takes any.
        vocab_size: Token ids lie below this.
        context_length: Longest sequence in tokens; 0 is unlimited.
        dtype: Compute type, `float32` or `bfloat16`.
        shards: Ranks that share the replica.
        kv_capacity: KV cache positions in all.
        version: FlyServe's.
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


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica carries, and what it has done.

    Attributes:
        sequences: Open ones.
        queued: Those that wait.
        kv_used: KV positions that open sequences hold.
        kv_capacity: KV positions in all.
        kv_cached: KV positions that only closed sequences have left behind; they give way to any other use.
        prefill_tokens: Tokens computed without an answer, since the replica started.
        reused_tokens: Tokens whose KV was taken from another sequence instead, since the replica started.
    """

    sequences: int = 0
    queued: int = 0
    kv_used: int = 0
    kv_capacity: int = 0
    kv_cached: int = 0
    prefill_tokens: int = 0
    reused_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long one step took, beside whom, and what it needed.

    Attributes:
        queue_ns: From its arrival to the start of its first forward.
        forward_ns: Inside forwards, the whole batch's.
        batch_size: Most sequences in one of these forwards.
        batch_tokens: Most token rows in one of these forwards.
        prefill_tokens: Tokens of its own that were computed without an answer.
        reused_tokens: Tokens of its own whose KV was taken from another sequence with the same prefix.
    """

    queue_ns: int = 0
    forward_ns: int = 0
    batch_size: int = 0
    batch_tokens: int = 0
    prefill_tokens: int = 0
    reused_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """The first message of a sequence's stream.

    Attributes:
        prompt_length: Later positions are response.
        deadline_ms: From now; 0 is none.
        cache_salt: Prefixes and memories are shared only within one.
        entropy: The estimator that the rule asks of a target.
        num_logprobs: Most likely tokens whose log-probabilities a target tells per position; None tells none.
        without_sub_drafter: A drafter leaves its sub-drafter out.
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


@dataclass(frozen=True, slots=True)
class Close:
    """The last message of a stream.

    Attributes:
        update: What the sequence came to, for a service that remembers finished responses; it has no answer.
    """

    update: SequenceUpdate | None = None


@dataclass(frozen=True, slots=True)
class Stale:
    """The server does not know the kept tokens: replay from `keep = 0` on the same stream."""

    step_id: int
    reason: StaleReason


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """Update the sequence, then answer for its last `num_drafts + 1` positions.

    Attributes:
        distributions: What each draft was drawn from (coupling `rejection`); else empty.
    """

    update: SequenceUpdate
    num_drafts: int
    distributions: tuple[SparseDistribution, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """The target's word after the token before the first draft, then after each draft.

    Attributes:
        choices: Token that the target itself takes; `num_drafts + 1` of them.
        entropies: In the estimator's unit; as many.
        excluded_drafts: Indices of drafts that the sampling filters exclude.
        logprobs: As many as choices, where they were asked for; else empty.
    """

    step_id: int
    choices: tuple[int, ...]
    entropies: tuple[float, ...]
    excluded_drafts: frozenset[int] = frozenset()
    logprobs: tuple[Logprobs, ...] = ()
    times: StepTimes = StepTimes()
    load: Load = Load()


@dataclass(frozen=True, slots=True)
class DraftStep:
    """Update the sequence, then draft after it.

    Attributes:
        max_tokens: Longest draft; 0 only updates.
        end_at_stop: End the draft behind a stop token (only where no rule looks beyond it).
        snippet_tokens: How many tokens of snippets to tell besides; 0 for none.
    """

    update: SequenceUpdate
    max_tokens: int
    end_at_stop: bool = False
    snippet_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ProposalCounts:
    """How a drafter used its sub-drafter in one step.

    Attributes:
        requested: Proposals requested.
        late: Proposals that arrived too late or never.
        invalid: Proposals with ids outside the vocabulary or longer than requested; cut there.
        low_confidence: Proposals left out because their confidence was too low.
    """

    requested: int = 0
    late: int = 0
    invalid: int = 0
    low_confidence: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal and how it was made.

    Attributes:
        tokens: May be fewer than asked for, or none.
        forwards: Of the drafter's model.
        sub_drafter_tokens: Tokens that the sub-drafter supplied.
        match_length: Suffix that a look-up engine matched; 0 for a model.
        confidence: Estimated probability that the first token is accepted; 1 where there is no estimate.
        distributions: What each token was drawn from (coupling `rejection`); else empty.
        proposals: How the sub-drafter was used.
        drafted_ahead: Tokens that had been drafted before the step came.
        dropped_ahead: Tokens that had been drafted before the step came, and that it contradicted.
        snippets: Of finished responses in which the sequence's last n-grams occur; none is told twice.
    """

    step_id: int
    tokens: tuple[int, ...]
    forwards: int = 0
    sub_drafter_tokens: int = 0
    match_length: int = 0
    confidence: float = 1.0
    distributions: tuple[SparseDistribution, ...] = ()
    times: StepTimes = StepTimes()
    load: Load = Load()
    proposals: ProposalCounts = ProposalCounts()
    drafted_ahead: int = 0
    dropped_ahead: int = 0
    snippets: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One service replica.

    Attributes:
        role: Its tier.
        address: host:port of its gRPC server.
        replica: Its name, stable over restarts.
        generation: Increases each time it is restarted.
        draining: It takes no new sequences and finishes what it has.
    """

    role: Role
    address: str
    replica: str = ""
    generation: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All endpoints at one time; `generation` increases with every change."""

    generation: int = 0
    endpoints: tuple[Endpoint, ...] = ()
