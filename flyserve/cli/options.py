"""Options that commands share: those of a start, and groups of sampling, speculation and connection."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flyserve.client import Client
from flyserve.client_base import ADDRESS_VARIABLE, DEFAULT_ADDRESS
from flyserve.connection import Tls, TlsOption
from flyserve.core.errors import ConfigError
from flyserve.core.presets import PRESETS
from flyserve.core.request import POLICY_REMEDY, DraftLength, SamplingParams, SpeculationParams

_LARGEST_SEED = 2**64 - 1
LONGEST_S = 7 * 86_400
"""Longest time of an option; the waits of the operating system end at 24 days."""
LONGEST_GRACE_S = 86_400
"""Longest time of streams to finish, as in `rollout.drain_s`."""

_sampling = partial(typer.Option, rich_help_panel="Sampling")
_speculation = partial(typer.Option, rich_help_panel="Speculation")
_connection = partial(typer.Option, rich_help_panel="Connection")
_port = partial(typer.Option, min=0, max=65_535)
time_option = partial(typer.Option, max=LONGEST_S)
"""Option that is a time in seconds, with a `min`; neither nan nor inf is within such limits."""

GrpcPort = Annotated[
    int | None, _port(help="Port of the gRPC API instead of the file's; 0 takes a free one.")
]
HttpPort = Annotated[
    int | None,
    _port(help="Port of the OpenAI-compatible HTTP API instead of the file's; 0 takes a free one."),
]
STARTUP_TIMEOUT_S = 600.0
"""Default time limit of a start: on GPUs, a first one compiles for minutes."""
StartupTimeout = Annotated[
    float, time_option(min=1, help="Time limit for Ray, and then the replicas, to be ready, in seconds.")
]
Verbose = Annotated[bool, typer.Option(help="Print what the services log.")]
SingleProcess = Annotated[
    bool,
    typer.Option(
        "--single-process",
        help="Serve from this process alone, without Ray: it starts sooner and takes a third of the memory,"
        " but with a draft model on CPUs it is slower under load.",
    ),
]


def _draft_length(text: str) -> DraftLength:
    """Parse the number of tokens."""
    if not text.isdecimal():
        raise typer.BadParameter(f"is {text!r}, must be a number of tokens: {POLICY_REMEDY}")
    return DraftLength(int(text))


SamplingOptions = Annotated[
    SamplingParams,
    {
        "temperature": _sampling(min=0, help="0 takes the likeliest token."),
        "top_k": _sampling(min=0, help="Keep the k likeliest tokens; 0: all."),
        "top_p": _sampling(help="Keep the likeliest tokens up to this share."),
        "seed": _sampling(min=0, max=_LARGEST_SEED, help="Same seed, same noise."),
        "coupling": _sampling(help="Relation between the random choices of drafter and target."),
    },
]
"""Sampling parameters."""

SpeculationOptions = Annotated[
    SpeculationParams,
    {
        "mode": _speculation(
            help="plain: no drafts; exact: drafts change nothing; fly: FLy's rule; draft: the drafter alone."
        ),
        "preset": _speculation(metavar="|".join(PRESETS), help="Rule that fly starts from."),
        "draft_length": _speculation(
            parser=_draft_length,
            metavar="INTEGER",
            help="Draft tokens per round.",
        ),
        "window": _speculation(min=1, help="Matches that must follow a mismatch."),
        "threshold": _speculation(min=0, help="Entropy below which a mismatch is rejected."),
        "max_logprob_gap": _speculation(
            min=0, help="Nats by which a rescued token may be less likely than the target's choice."
        ),
        "reproducible_drafts": _speculation(help="Let drafts depend on the request alone; rounds wait."),
        "tail": _speculation(help="Treatment of a window that the draft cuts short."),
        "exact_in": _speculation(help="Kind of text that fly decodes exactly; may repeat."),
    },
]
"""Speculation parameters; options that are not given take the deployment's defaults."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Address of the deployment, and credentials."""

    address: Annotated[
        list[str] | None,
        _connection(
            envvar=ADDRESS_VARIABLE,
            metavar="HOST:PORT",
            help="A router; may repeat.",
            show_default=DEFAULT_ADDRESS,
        ),
    ] = None
    timeout_s: Annotated[
        float | None, _connection(min=0.001, max=LONGEST_S, help="Time limit of the call, in seconds.")
    ] = None
    retries: Annotated[int, _connection(min=0, help="Retries if a router does not answer or is full.")] = 3
    token: Annotated[str | None, _connection(envvar="FLYSERVE_TOKEN", help="Prefer the variable.")] = None
    tls: Annotated[bool, _connection("--tls", help="Encrypt.")] = False
    tls_root: Annotated[
        Path | None, _connection(metavar="FILE", help="Encrypt; trust these authorities.")
    ] = None
    tls_certificate: Annotated[Path | None, _connection(metavar="FILE", help="Own certificate.")] = None
    tls_key: Annotated[Path | None, _connection(metavar="FILE", help="Its key.")] = None

    def client(self, addresses: Sequence[str] | None = None) -> Client:
        """Return a client of these addresses, by default the given ones, which the caller closes.

        Raises the ConfigErrors of `Client`.
        """
        routers = addresses or self.address or DEFAULT_ADDRESS
        return Client(routers, tls=self._tls(), token=self.token, retries=self.retries)

    def encrypts(self) -> bool:
        """Return True if an option asks for TLS."""
        return bool(self.tls or self.tls_root or self.tls_certificate or self.tls_key)

    def _tls(self) -> TlsOption:
        if not self.encrypts():
            return False
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("--tls-certificate and --tls-key belong together")
        return Tls(self.tls_root, self.tls_certificate, self.tls_key)
