"""A response: chunks, choices, rounds, statistics; for router, wire, HTTP API and client."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from flyserve.core.evidence import RoundEvidence
from flyserve.core.messages import Draft, ModelInfo
from flyserve.core.request import SpeculationParams
from flyserve.core.types import Decision, FinishReason, Mode, PromptToken, Token, Verdict


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a choice; times in seconds.

    Attributes:
        index: Index of the round, from 0.
        drafted: Draft tokens verified.
        accepted: Draft tokens decided, those of an earlier round's open window included.
        start_s: Time since the request, like `end_s`.
        draft_s: Time spent drafting, without the wire.
        verify_s: Time spent verifying, without the wire.
        wire_s: Time on the wire and in queues.
        evidence: The target's results on its draft, if they were requested.
    """

    index: int
    drafted: int
    accepted: int
    start_s: float
    draft_s: float
    verify_s: float
    wire_s: float
    end_s: float
    evidence: RoundEvidence | None = None


@dataclass(slots=True)
class Statistics:
    """Counts and times of one choice; times in seconds.

    Attributes:
        rounds: Rounds, with and without a draft; one without may have several tokens.
        drafted: Draft tokens verified.
        emitted: Tokens emitted.
        accepted: Draft tokens emitted, rescued ones included.
        rescued: Draft tokens emitted although they differ from the target's choice.
        rejected_by_exact: First rejected mismatch of a round, by `RejectionReason`, like the four after it.
        tau: Tokens emitted in rounds with a draft, per such round; 0 without one.
        drafter_forwards: Forwards of the drafter's model.
        sub_drafter_tokens: Draft tokens that the sub-drafter supplied.
        draft_s: Time spent drafting, without the wire.
        verify_s: Time spent verifying, without the wire.
        wire_s: Time on the wire and in queues.
        wire_bytes: Bytes sent to and received from the services.
        time_to_first_token_s: Time from the request to the first decided token.
        total_s: Time from the request to the end.
        seed: Seed of the sampling noise.
        replays: Full-sequence replays.
        draft_rounds: Rounds with a draft.
        draft_round_tokens: Tokens emitted in rounds with a draft, an earlier round's open window included.
        carried: Rounds that left a window open for the next draft.
        proposals_requested: Requests of the drafter to its sub-drafter; the responses that were `late` or
            `invalid` were not used.
        drafted_ahead: Draft tokens that were ready before they were requested.
        dropped_ahead: Tokens drafted ahead that could not be used.
        cached_tokens: Prompt tokens whose KV the first target reused from an earlier sequence; in mode draft,
            the first drafter.
        predicted: Draft tokens that were taken from the request's prediction.
        predicted_accepted: Those of them that their round accepted.
        forced: Draft tokens that the grammar of the request forced.
        forced_accepted: Those of them that their round accepted.
    """

    rounds: int = 0
    drafted: int = 0
    emitted: int = 0
    accepted: int = 0
    rescued: int = 0
    rejected_by_exact: int = 0
    rejected_by_gate: int = 0
    rejected_by_window: int = 0
    rejected_by_tail: int = 0
    rejected_by_guard: int = 0
    tau: float = 0.0
    drafter_forwards: int = 0
    sub_drafter_tokens: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    wire_s: float = 0.0
    wire_bytes: int = 0
    time_to_first_token_s: float = 0.0
    total_s: float = 0.0
    seed: int = 0
    replays: int = 0
    draft_rounds: int = 0
    draft_round_tokens: int = 0
    carried: int = 0
    proposals_requested: int = 0
    proposals_late: int = 0
    proposals_invalid: int = 0
    drafted_ahead: int = 0
    dropped_ahead: int = 0
    cached_tokens: int = 0
    predicted: int = 0
    predicted_accepted: int = 0
    forced: int = 0
    forced_accepted: int = 0

    def count_round(self, num_drafts: int, decision: Decision) -> None:
        """Add one verification and its decision."""
        verdicts = [token.verdict for token in decision.decided]
        rescued = verdicts.count(Verdict.RESCUED)
        self.rounds += 1
        self.drafted += num_drafts
        self.emitted += len(verdicts)
        self.accepted += verdicts.count(Verdict.EXACT) + rescued
        self.rescued += rescued
        self.carried += bool(decision.provisional)
        if decision.rejection is not None:
            name = f"rejected_by_{decision.rejection.value}"
            setattr(self, name, getattr(self, name) + 1)
        if num_drafts:
            self.draft_rounds += 1
            self.draft_round_tokens += len(verdicts)
            self.tau = self.draft_round_tokens / self.draft_rounds

    def count_draft(self, draft: Draft) -> None:
        """Add the work of a drafter."""
        self.drafter_forwards += draft.forwards
        self.sub_drafter_tokens += draft.sub_drafter_tokens
        self.proposals_requested += draft.proposals.requested
        self.proposals_late += draft.proposals.late
        self.proposals_invalid += draft.proposals.invalid
        self.drafted_ahead += draft.drafted_ahead
        self.dropped_ahead += draft.dropped_ahead


@dataclass(frozen=True, slots=True)
class Origin:
    """Everything besides the request that is needed to resume its response after a broken stream.

    Attributes:
        mode: Decoding mode, also if the request took the deployment's default.
        seed: Seed of the request's sampling noise, drawn or given.
        weight_fingerprint: Hash of the target's weights; in mode draft, of the drafter's.
        max_new_tokens: Most new tokens of a choice, cut to what the context holds.
    """

    mode: Mode
    seed: int
    weight_fingerprint: str
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Tokens of one choice with their text, some or all of them.

    Attributes:
        text: Whole characters.
        tokens: Decided tokens. In a chunk, the text of a token may follow in a later chunk.
        finish_reason: None while the choice has not ended.
        rounds: Rounds, in order.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    finish_reason: FinishReason | None = None
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk(Part):
    """Part of a streamed response: what was decided since the last chunk of the same choice.

    Attributes:
        choice_index: Index of the choice, from 0.
        statistics: In the choice's last chunk, else None.
        warnings: In the choice's last chunk.
        request_id: In the response's first chunk, else empty.
        prompt_tokens: In the response's first chunk, else 0.
        origin: In the response's first chunk, else None.
        prompt: In the response's first chunk, if log-probabilities of the prompt were requested; else empty.
        kernels: In the choice's first chunk of a stream, and after a change: hash of the kernels that compute
            it; else empty.
    """

    choice_index: int = 0
    statistics: Statistics | None = None
    warnings: tuple[str, ...] = ()
    request_id: str = ""
    prompt_tokens: int = 0
    origin: Origin | None = None
    prompt: tuple[PromptToken, ...] = ()
    kernels: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Part):
    """One of the requested continuations; its statistics are empty while it has not ended."""

    index: int
    statistics: Statistics = field(default_factory=Statistics)


def join_chunks(index: int, chunks: Sequence[Chunk]) -> Choice:
    """Return the choice that consists of these chunks; there may be none."""
    last = chunks[-1] if chunks else None
    return Choice(
        index=index,
        text="".join(chunk.text for chunk in chunks),
        tokens=tuple(token for chunk in chunks for token in chunk.tokens),
        finish_reason=last.finish_reason if last else None,
        statistics=(last.statistics if last else None) or Statistics(),
        rounds=tuple(each for chunk in chunks for each in chunk.rounds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A whole response; `text`, `tokens`, `finish_reason` and `statistics` are those of the first choice.

    Attributes:
        choices: Requested choices, at least one.
        prompt_tokens: Prompt length in tokens.
        warnings: Warnings about the request and its choices.
        prompt: Tokens of the prompt, if their log-probabilities were requested; else empty.
        resumed: Number of times that its stream broke and another one continued it, token for token. The
            statistics of a choice then count from the last time, and its rounds are numbered from 0 again.
    """

    request_id: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    warnings: tuple[str, ...] = ()
    prompt: tuple[PromptToken, ...] = ()
    resumed: int = 0

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tokens(self) -> tuple[Token, ...]:
        return self.choices[0].tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason

    @property
    def statistics(self) -> Statistics:
        return self.choices[0].statistics


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of a tokenized text, with the text of this token alone."""

    id: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentInfo:
    """Models, defaults and limits of a deployment.

    Attributes:
        target: Model of the targets.
        drafter: Model of the drafters; None if there are none at present.
        default_speculation: Speculation of a request that sets none, every field of the rule included.
        max_new_tokens_limit: Most new tokens of one request.
        draft_length_limit: Longest draft of one round.
        choices_limit: Most choices of one request.
        logprobs_limit: Most likely tokens that a request may ask for at each position.
        presets: Names of the rules that mode fly may start from.
        warnings: Faults of the deployment at present, each with its remedy.
        ending_ids: Tokens of the model that end a response.
    """

    target: ModelInfo
    drafter: ModelInfo | None = None
    default_speculation: SpeculationParams = field(default_factory=SpeculationParams)
    max_new_tokens_limit: int = 0
    draft_length_limit: int = 0
    choices_limit: int = 0
    logprobs_limit: int = 0
    presets: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    ending_ids: tuple[int, ...] = ()
