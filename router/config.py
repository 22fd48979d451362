"""Configuration of one router."""

import re
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from flyserve.core.limits import MOST_PRIORITY
from router.policies import POLICIES
from router.speculation_config import SpeculationConfig
from router.tools.families import ReasoningFamily, ToolFamily
from services.common.addresses import shared_port_fault
from services.common.config import Config, OneOf
from services.common.model_source import ModelPath, is_hub_id, model_name
from services.common.security.config import PublicSecurityConfig
from services.common.service_config import ProcessSection


class LimitsConfig(Config):
    """Limits of one request."""

    max_new_tokens: int = Field(131_072, ge=1)
    """Most new tokens of one request. A chat or a Response that sets no number fills the context of its
    model, up to this limit."""

    default_new_tokens: int = Field(256, ge=1)
    """New tokens of a completion, or of a request over gRPC, that sets no number; at most
    `max_new_tokens`."""

    draft_length: int = Field(64, ge=1)
    """Longest draft of one round, in tokens."""

    prompt_characters: int = Field(1_000_000, ge=1)
    """Longest prompt text, and longest prediction, before it is tokenized."""

    stop_strings: int = Field(16, ge=0)
    """Most stop strings."""

    stop_string_characters: int = Field(256, ge=1)
    """Longest stop string."""

    listed_tokens: int = Field(1024, ge=0)
    """Most stop token ids, and most biased tokens."""

    grammar_characters: int = Field(262_144, ge=1)
    """Longest grammar: a JSON Schema, a regular expression, a list of choices, or a grammar in Lark
    notation."""

    grammar_compile_s: float = Field(1.0, gt=0, le=5)
    """Most CPU time to compile a grammar, in a process of its own, in seconds."""

    forced_characters: int = Field(8192, ge=0, le=65_536)
    """Longest text that a grammar may force if the router drafts it; 0 drafts none. A million such
    characters stop the router's event loop for about two seconds."""

    name_characters: int = Field(256, ge=1)
    """Longest request id and longest cache salt."""

    choices: int = Field(16, ge=1)
    """Most choices of one request; they are decoded concurrently, and each takes a slot."""

    logprobs: int = Field(20, ge=0)
    """Most tokens per position whose log-probabilities are reported."""

    returned_values: int = Field(524_288, ge=1)
    """Most log-probabilities of one response: (1 + the most likely ones) at each token of its prompts and
    of all its choices of `max_new_tokens`; with `evidence`, at each position of their drafts. A response that
    is returned as a whole holds about 200 bytes for each."""

    items: int = Field(4096, ge=1)
    """Most messages or items of one conversation, and most parts and tool calls of each."""

    priority: int = Field(MOST_PRIORITY, ge=0, le=MOST_PRIORITY)
    """Largest priority of a request, and its negative the smallest; 0 gives all requests the same one."""

    prompts: int = Field(64, ge=1)
    """Most prompts of one HTTP request; each takes the slots of its choices."""

    tools: int = Field(128, ge=0)
    """Most tools of one chat."""

    tool_characters: int = Field(200_000, ge=1)
    """Most characters of all tools of one chat, as JSON."""


def _host_pattern(host: str) -> str:
    """Return a pattern in the form of Starlette's TrustedHostMiddleware: an IPv6 address has brackets."""
    name = host.lower()
    with suppress(ValueError):
        return f"[{IPv6Address(name.strip('[]'))}]"
    if re.fullmatch(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*", name, re.ASCII):
        return name
    raise ValueError("must be a name such as api.example.com or *.example.com, an address, or *; no port")


AllowedHost = Annotated[str, AfterValidator(_host_pattern)]


class HttpConfig(Config):
    """Limits and origins of the HTTP API."""

    max_body_bytes: int = Field(8 << 20, ge=1024)
    """Longest body of a request."""

    max_body_values: int = Field(1 << 20, ge=1024)
    """Most values in the JSON of a request. A number counts once; a text, a name, a list and an object count
    four times, since they cost as much more."""

    header_timeout_s: float = Field(10.0, gt=0)
    """Time within which the header of a request must arrive on a new connection, or after its first byte on
    a connection that is kept; and the rest of a body after its response."""

    body_timeout_s: float = Field(30.0, gt=0)
    """Time within which the whole body of a request must arrive."""

    max_connections: int = Field(4096, ge=1)
    """Most connections, and never more than half of the process's open files. Above it the connection that
    has waited longest for a request is closed, a new one if all others have requests."""

    cors_origins: tuple[str, ...] = ()
    """Origins of the pages that may call from a browser; `*` is any origin."""

    allowed_hosts: tuple[AllowedHost, ...] = ()
    """Names, without a port, that the header `Host` of a request may have, such as `api.example.com`,
    `*.example.com` or `[::1]`; `*` accepts any. Empty accepts any too, but names of loopback alone if the
    router listens on loopback without API keys and TLS: it keeps a web page whose name was pointed at this
    address from using the API."""

    speculation_metrics: bool = False
    """Adds `metrics.speculative_decoding` to every response, in the shape of vLLM's
    `--per-request-spec-decode-metrics summary`."""


_LONGEST_MESSAGE_BYTES = 4 << 20
"""Longest message that a gRPC server accepts by default."""


class RouterSection(Config):
    """Public service, admission and time limits of a router."""

    host: str = "127.0.0.1"
    """Interface that the public service listens on."""

    grpc_port: int = Field(50_051, ge=0, le=65_535)
    """Port of the gRPC API; 0 takes a free one."""

    http_port: int | None = Field(None, ge=0, le=65_535)
    """Port of the OpenAI-compatible HTTP API; 0 takes a free one, null serves no HTTP."""

    http: HttpConfig = HttpConfig()
    """Limits and origins of the HTTP API."""

    model_name: str | None = Field(None, min_length=1, max_length=256)
    """Name of the model in HTTP requests; null takes the name of the target's folder, or org/name on the
    hub."""

    chat_template: Path | None = None
    """Jinja file that replaces the model's own chat template."""

    tool_parser: ToolFamily = ToolFamily.AUTO
    """Format of tool calls in the model's text; `auto` finds it in the chat template, `none` leaves calls in
    the text."""

    reasoning_parser: ReasoningFamily = ReasoningFamily.AUTO
    """Format of reasoning in the model's text; `auto` finds it in the chat template, `none` leaves it in the
    text."""

    balancing: Annotated[str, OneOf(POLICIES)] = "prefix_affinity"
    """Policy that selects a replica."""

    max_concurrent: int = Field(256, ge=1)
    """Choices that decode at the same time, if the targets have as many places; further requests wait."""

    max_queued: int = Field(1024, ge=0)
    """Requests that may wait; further ones are rejected with a retry delay."""

    max_body_bytes_in_all: int = Field(512 << 20, ge=1)
    """Most bytes that the bodies of all requests have together, from their announcement to the end of their
    responses; further requests are rejected with a retry delay before they are read. Without API keys the
    requests of one address have at most half of the bytes that others leave, but always one body."""

    max_body_bytes_per_key: int = Field(128 << 20, ge=1)
    """Most of these bytes for the requests of one API key."""

    limits: LimitsConfig = LimitsConfig()
    """Limits of one request."""

    replica_wait_s: float = Field(10.0, ge=0)
    """Time that a request waits for a target, or in mode `draft` for a drafter, if there is none. At most
    `max_concurrent` + `max_queued` requests wait at once for each, and as many calls of `Info`. If more come,
    the latest of the client with the most of them is rejected."""

    verify_timeout_s: float = Field(120.0, gt=0)
    """Time limit of one step of a target, or of a drafter that decodes by itself, without the time that the
    sequence waits for a place or for memory. It begins again with each forward of a long prompt. After it the
    request continues at another replica; the slow one counts as lost if its health probe fails, or if it has
    answered no other step in that time."""

    draft_timeout_s: float = Field(30.0, gt=0)
    """Time limit of one draft, after which another drafter is asked. The slow one counts as lost if its
    health probe fails, or if it has answered no other step in that time; the first draft of a response, which
    computes the prompt, does not count."""

    draft_patience: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Time that a round waits for a draft, as a multiple of the time that the draft is expected to save.
    `speculation.reproducible_drafts` waits for every draft, whatever it saves."""

    stream_interval_s: float = Field(0.05, ge=0, le=10)
    """Time of the target's forwards after which a response without drafts sends its next tokens, if more than
    three are decoded in it; else, as with 0, it sends each token by itself. Ten times as long for a plain
    response that the client gets as a whole."""

    probe_interval_s: float = Field(2.0, gt=0)
    """Time between two health probes of a replica, whatever its streams do."""

    probe_timeout_s: float = Field(3.0, gt=0)
    """Time limit of a health probe; a replica counts as lost if it misses two in a row while all of its
    streams are silent."""

    write_timeout_s: float = Field(60.0, gt=0)
    """Time that a client may take no part of its response before the request is cancelled."""

    max_connection_age_s: float = Field(600.0, gt=0)
    """Age at which client connections are closed, so that clients reconnect and new routers get their
    share."""

    @model_validator(mode="after")
    def _has_consistent_limits(self) -> Self:
        limits = self.limits
        if limits.default_new_tokens > limits.max_new_tokens:
            raise ValueError(
                f"limits.default_new_tokens is {limits.default_new_tokens},"
                f" at most limits.max_new_tokens, which is {limits.max_new_tokens}"
            )
        return self

    @model_validator(mode="after")
    def _has_room_for_one_body(self) -> Self:
        longest = max(self.http.max_body_bytes, _LONGEST_MESSAGE_BYTES)
        for name in ("max_body_bytes_per_key", "max_body_bytes_in_all"):
            if (most := getattr(self, name)) < longest:
                raise ValueError(f"{name} is {most}, at least {longest}: the longest body of one request")
        return self

    def require_draft_length(self, speculation: SpeculationConfig) -> None:
        """Raise ValueError if drafts by default are longer than a request may ask for."""
        longest, limit = speculation.draft_length.max, self.limits.draft_length
        if longest > limit:
            raise ValueError(
                f"speculation.draft_length.max is {longest},"
                f" at most router.limits.draft_length, which is {limit}"
            )


class RouterConfig(RouterSection, ProcessSection):
    """Everything that the process of a router is started with."""

    model: ModelPath
    """Folder with the target's tokenizer and generation config, or `org/name@revision` on the model hub."""

    registry: str | None = None
    """host:port of the registry, which lists the replicas; excludes `targets` and `drafters`."""

    targets: tuple[str, ...] = ()
    """host:port of every target replica, if there is no registry; or `dns:host:port` with a name that
    stands for all of them, which is looked up repeatedly."""

    drafters: tuple[str, ...] = ()
    """host:port or `dns:host:port` of the drafter replicas, if there is no registry."""

    start_timeout_s: float = Field(60.0, gt=0)
    """Time that a start waits for the first target."""

    scales_to_zero: bool = False
    """The deployment may have no target while it is idle: start, and be ready, without one. Requests wait for
    `replica_wait_s`."""

    has_drafter: bool = True
    """The deployment has drafters: a round for which none is available is a fault."""

    grace_s: float = Field(30.0, ge=0)
    """Time in seconds that running requests have to finish when the router is stopped."""

    speculation: SpeculationConfig = SpeculationConfig()
    """Speculation of a request that does not set its own."""

    security: PublicSecurityConfig = PublicSecurityConfig()
    """TLS and API keys of the public service."""

    @property
    def address(self) -> str:
        """host:port to listen at."""
        return f"{self.host}:{self.grpc_port}"

    @property
    def served_name(self) -> str:
        """Name of the model in HTTP requests."""
        if self.model_name is not None:
            return self.model_name
        name = model_name(self.model)
        return name.partition("@")[0] if is_hub_id(self.model) else name

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.registry is None and not self.targets:
            raise ValueError("neither registry nor targets is set: set one of them to find the replicas")
        if self.registry is not None and (self.targets or self.drafters):
            raise ValueError("registry excludes targets and drafters")
        return self

    @model_validator(mode="after")
    def _has_a_port_for_each(self) -> Self:
        ports = {
            "grpc_port": self.grpc_port,
            "http_port": self.http_port,
            "security.health_port": self.security.health_port,
            "telemetry.metrics_port": self.telemetry.metrics_port,
        }
        if fault := shared_port_fault(ports):
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _drafts_within_limits(self) -> Self:
        self.require_draft_length(self.speculation)
        return self
