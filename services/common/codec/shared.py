"""What every link carries: sampling, opening, sequence updates, times, load, model info."""

from fly.errors import InvalidRequest
from fly.messages import Close, Load, ModelInfo, Open, Role, Stale, StepTimes
from fly.sequence import SequenceUpdate, StaleReason
from fly.types import Coupling, EntropyEstimator, SamplingParams, SparseDistribution
from protos.flyserve.v1 import common_pb2

_STALE = {
    StaleReason.BEYOND_STATE: common_pb2.STALE_REASON_BEYOND_STATE,
    StaleReason.WRONG_HASH: common_pb2.STALE_REASON_WRONG_HASH,
    StaleReason.EVICTED: common_pb2.STALE_REASON_EVICTED,
}
_STALE_BACK = {wire: domain for domain, wire in _STALE.items()}
_COUPLINGS = {
    Coupling.SHARED_NOISE: common_pb2.COUPLING_SHARED_NOISE,
    Coupling.REJECTION: common_pb2.COUPLING_REJECTION,
}
_COUPLINGS_BACK = {wire: domain for domain, wire in _COUPLINGS.items()} | {
    common_pb2.COUPLING_UNSPECIFIED: Coupling.SHARED_NOISE
}


def sampling_to_wire(sampling: SamplingParams) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=sampling.stop_token_ids,
        seed=sampling.seed,
        coupling=_COUPLINGS[sampling.coupling],
    )


def sampling_from_wire(wire: common_pb2.SamplingParams) -> SamplingParams:
    """Raises InvalidRequest where the coupling is unknown."""
    if (coupling := _COUPLINGS_BACK.get(wire.coupling)) is None:
        raise InvalidRequest.of("sampling.coupling", f"is {wire.coupling}, not a known coupling")
    return SamplingParams(
        temperature=wire.temperature,
        top_k=wire.top_k,
        top_p=wire.top_p if wire.HasField("top_p") else 1.0,
        min_p=wire.min_p,
        repetition_penalty=wire.repetition_penalty if wire.HasField("repetition_penalty") else 1.0,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=tuple(sorted(wire.logit_bias.items())),
        min_tokens=wire.min_tokens,
        ignore_eos=wire.ignore_eos,
        stop_token_ids=tuple(wire.stop_token_ids),
        seed=wire.seed,
        coupling=coupling,
    )


def distribution_to_wire(distribution: SparseDistribution) -> common_pb2.SparseDistribution:
    return common_pb2.SparseDistribution(ids=distribution.ids, probabilities=distribution.probabilities)


def distribution_from_wire(wire: common_pb2.SparseDistribution) -> SparseDistribution:
    return SparseDistribution(tuple(wire.ids), tuple(wire.probabilities))


def open_to_wire(message: Open) -> common_pb2.Open:
    return common_pb2.Open(
        request_id=message.request_id,
        prompt_length=message.prompt_length,
        sampling=sampling_to_wire(message.sampling),
        priority=message.priority,
        deadline_ms=message.deadline_ms,
        cache_salt=message.cache_salt,
    )


def open_from_wire(
    wire: common_pb2.Open,
    entropy: EntropyEstimator = EntropyEstimator.TOP_K,
    without_sub_drafter: bool = False,
    num_logprobs: int | None = None,
) -> Open:
    return Open(
        request_id=wire.request_id,
        prompt_length=wire.prompt_length,
        sampling=sampling_from_wire(wire.sampling),
        priority=wire.priority,
        deadline_ms=wire.deadline_ms,
        cache_salt=wire.cache_salt,
        entropy=entropy,
        without_sub_drafter=without_sub_drafter,
        num_logprobs=num_logprobs,
    )


def update_to_wire(update: SequenceUpdate) -> common_pb2.SequenceUpdate:
    return common_pb2.SequenceUpdate(
        step_id=update.step_id,
        keep=update.keep,
        tokens=update.tokens,
        decided=update.decided,
        prefix_hash=update.prefix_hash,
    )


def update_from_wire(wire: common_pb2.SequenceUpdate) -> SequenceUpdate:
    return SequenceUpdate(wire.step_id, wire.keep, tuple(wire.tokens), wire.decided, wire.prefix_hash)


def close_to_wire(close: Close) -> common_pb2.Close:
    return common_pb2.Close(update=update_to_wire(close.update) if close.update is not None else None)


def close_from_wire(wire: common_pb2.Close) -> Close:
    return Close(update_from_wire(wire.update) if wire.HasField("update") else None)


def stale_to_wire(stale: Stale) -> common_pb2.Stale:
    return common_pb2.Stale(step_id=stale.step_id, reason=_STALE[stale.reason])


def stale_from_wire(wire: common_pb2.Stale) -> Stale:
    return Stale(wire.step_id, _STALE_BACK.get(wire.reason, StaleReason.BEYOND_STATE))


def times_to_wire(times: StepTimes) -> common_pb2.StepTimes:
    return common_pb2.StepTimes(
        queue_ns=times.queue_ns,
        forward_ns=times.forward_ns,
        batch_size=times.batch_size,
        batch_tokens=times.batch_tokens,
        prefill_tokens=times.prefill_tokens,
        reused_tokens=times.reused_tokens,
    )


def times_from_wire(wire: common_pb2.StepTimes) -> StepTimes:
    return StepTimes(
        queue_ns=wire.queue_ns,
        forward_ns=wire.forward_ns,
        batch_size=wire.batch_size,
        batch_tokens=wire.batch_tokens,
        prefill_tokens=wire.prefill_tokens,
        reused_tokens=wire.reused_tokens,
    )


def load_to_wire(load: Load) -> common_pb2.Load:
    return common_pb2.Load(
        sequences=load.sequences,
        queued=load.queued,
        kv_used=load.kv_used,
        kv_capacity=load.kv_capacity,
        kv_cached=load.kv_cached,
        prefill_tokens=load.prefill_tokens,
        reused_tokens=load.reused_tokens,
    )


def load_from_wire(wire: common_pb2.Load) -> Load:
    return Load(
        sequences=wire.sequences,
        queued=wire.queued,
        kv_used=wire.kv_used,
        kv_capacity=wire.kv_capacity,
        kv_cached=wire.kv_cached,
        prefill_tokens=wire.prefill_tokens,
        reused_tokens=wire.reused_tokens,
    )


def info_to_wire(info: ModelInfo, load: Load) -> common_pb2.InfoResponse:
    return common_pb2.InfoResponse(model=model_to_wire(info), load=load_to_wire(load))


def info_from_wire(wire: common_pb2.InfoResponse) -> tuple[ModelInfo, Load]:
    return model_from_wire(wire.model), load_from_wire(wire.load)


def model_to_wire(info: ModelInfo) -> common_pb2.ModelInfo:
    return common_pb2.ModelInfo(
        role=info.role.value,
        model_id=info.model_id,
        weight_fingerprint=info.weight_fingerprint,
        architecture=info.architecture,
        token_map_hash=info.token_map_hash,
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        dtype=info.dtype,
        shards=info.shards,
        kv_capacity=info.kv_capacity,
        version=info.version,
    )


def model_from_wire(wire: common_pb2.ModelInfo) -> ModelInfo:
    return ModelInfo(
        role=Role(wire.role),
        model_id=wire.model_id,
        weight_fingerprint=wire.weight_fingerprint,
        architecture=wire.architecture,
        token_map_hash=wire.token_map_hash,
        vocab_size=wire.vocab_size,
        context_length=wire.context_length,
        dtype=wire.dtype,
        shards=wire.shards,
        kv_capacity=wire.kv_capacity,
        version=wire.version,
    )
