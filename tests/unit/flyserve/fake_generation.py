"""A tiny public service on a real socket, for the client and the command line."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from typer.testing import CliRunner, Result

from flyserve.cli import app
from flyserve.v1 import common_pb2
from flyserve.v1 import generation_pb2 as pb
from flyserve.v1.generation_pb2_grpc import GenerationServicer, add_GenerationServicer_to_server

TOKENS = (
    pb.Token(id=1, verdict=pb.VERDICT_EXACT, choice=1, entropy=0.5, text="the"),
    pb.Token(id=2, verdict=pb.VERDICT_RESCUED, choice=7, entropy=1.5, text=" quick", choice_text=" slow"),
    pb.Token(id=3, verdict=pb.VERDICT_CORRECTED, choice=3, entropy=0.25, text=" fox"),
)
PIECES = {1: "the", 2: " quick", 3: " fox"}
STATISTICS = pb.Statistics(
    rounds=1, drafted=4, emitted=3, accepted=2, rescued=1, tau=3.0, time_to_first_token_s=0.012, total_s=0.5
)


def make_choice(index: int) -> pb.Choice:
    return pb.Choice(
        index=index,
        text="the quick fox",
        tokens=TOKENS,
        finish_reason=pb.FINISH_REASON_STOP_TOKEN,
        statistics=STATISTICS,
    )


class FakeGeneration(GenerationServicer):
    """Answers every prompt alike; some prompts are rejected."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.metadata: list[dict[str, Any]] = []
        self.conversations: list[list[tuple[str, str]]] = []
        self.rejections_left = 0
        self.most_requests: int | None = None
        """Requests that are answered; those after them fail."""
        self.goes_on_for_ever = False
        self.has_begun = threading.Event()
        self.has_ended = threading.Event()

    def Info(self, request: Any, context: Any) -> pb.DeploymentInfo:
        target = common_pb2.ModelInfo(
            role=common_pb2.ROLE_TARGET, model_id="big", weight_fingerprint="w1", version="0"
        )
        default = pb.SpeculationParams(preset="vllm")
        return pb.DeploymentInfo(target=target, default_speculation=default, presets=["vllm", "flyserve"])

    def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        self._take(request, context)
        return pb.GenerateResponse(
            request_id="r1",
            choices=[make_choice(index) for index in range(request.n or 1)],
            prompt_tokens=5,
            warnings=["short context"],
        )

    def GenerateStream(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateChunk]:
        self._take(request, context)
        ended = threading.Event()
        context.add_callback(ended.set)
        context.add_callback(self.has_ended.set)
        yield pb.GenerateChunk(text="the quick", tokens=TOKENS[:2], request_id="r1", prompt_tokens=5)
        if request.prompt == "endless" or self.goes_on_for_ever:
            ended.wait()
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too late")
        yield pb.GenerateChunk(
            text=" fox",
            tokens=TOKENS[2:],
            finish_reason=pb.FINISH_REASON_STOP_TOKEN,
            statistics=STATISTICS,
            warnings=["short context"],
        )

    def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        if request.messages:
            self.conversations.append([(message.role, message.content) for message in request.messages])
            if request.messages[-1].content == "bad":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "messages need a chat template")
            return pb.TokenizeResponse(tokens=[pb.TextToken(id=len(request.messages), text="x")])
        known = [(token, piece) for token, piece in PIECES.items() if piece in request.text]
        return pb.TokenizeResponse(tokens=[pb.TextToken(id=token, text=text) for token, text in known])

    def _take(self, request: pb.GenerateRequest, context: Any) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        if self.most_requests is not None and len(self.requests) > self.most_requests:
            context.abort(grpc.StatusCode.INTERNAL, "a fault")
        if self.rejections_left:
            self.rejections_left -= 1
            self._reject_for_now(request.prompt, context)
        if request.prompt == "hanging":
            ended = threading.Event()
            context.add_callback(ended.set)
            self.has_begun.set()
            ended.wait()
        if request.prompt == "bad":
            violation = error_details_pb2.BadRequest.FieldViolation(
                field="max_new_tokens", description="is 9000, must be at most 4096"
            )
            _reject(
                context, code_pb2.INVALID_ARGUMENT, error_details_pb2.BadRequest(field_violations=[violation])
            )
        if request.prompt == "full":
            delay = duration_pb2.Duration(seconds=2, nanos=500_000_000)
            _reject(context, code_pb2.RESOURCE_EXHAUSTED, error_details_pb2.RetryInfo(retry_delay=delay))

    def _reject_for_now(self, prompt: str, context: Any) -> None:
        if prompt == "away":
            context.abort(grpc.StatusCode.UNAVAILABLE, "no target")
        _reject(context, code_pb2.RESOURCE_EXHAUSTED, _retry_after(0.05))


def _retry_after(seconds: float) -> Any:
    return error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=int(seconds * 1e9)))


def _reject(context: Any, code: int, detail: Any) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    context.abort_with_status(
        rpc_status.to_status(status_pb2.Status(code=code, message="no", details=[packed]))
    )


@contextmanager
def fake_generation(
    credentials: grpc.ServerCredentials | None = None,
) -> Iterator[tuple[FakeGeneration, str]]:
    service = FakeGeneration()
    server = grpc.server(ThreadPoolExecutor(4))
    add_GenerationServicer_to_server(service, server)
    place = "127.0.0.1:0"
    port = server.add_secure_port(place, credentials) if credentials else server.add_insecure_port(place)
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def rejected_address() -> str:
    """An address at which nothing listens."""
    with fake_generation() as (_, address):
        return address


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def fails_with(result: Result, *parts: str, status: int = 2) -> None:
    """Check that a command ended with one line of error that has these parts."""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.output
    assert lines[0].startswith("error: ")
    assert all(part in lines[0] for part in parts), lines[0]
    assert result.exit_code == status
