"""The options that commands share, in groups: sampling, speculation, connection."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from fly.errors import ConfigError
from fly.presets import PRESETS
from fly.types import Coupling, DraftLengthPolicy, Mode, Tail
from flyserve.cli.terminal import DEFAULT_ADDRESS
from flyserve.client import Client
from flyserve.connection import Tls, TlsOption
from flyserve.types import Sampling, Speculation

_SAMPLING, _SPECULATION, _CONNECTION = "Sampling", "Speculation", "Connection"
_LARGEST_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are drawn."""

    temperature: Annotated[
        float, typer.Option(min=0, help="0 takes the likeliest token.", rich_help_panel=_SAMPLING)
    ] = 0.0
    top_k: Annotated[
        int, typer.Option(min=0, help="Keep the k likeliest tokens; 0: all.", rich_help_panel=_SAMPLING)
    ] = 0
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens up to this share.", rich_help_panel=_SAMPLING)
    ] = 1.0
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=_LARGEST_SEED, help="Same seed, same noise.", rich_help_panel=_SAMPLING),
    ] = None
    coupling: Annotated[
        Coupling,
        typer.Option(help="How drafter and target share their noise.", rich_help_panel=_SAMPLING),
    ] = Coupling.SHARED_NOISE

    def sampling(self) -> Sampling:
        return Sampling(**asdict(self))


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """How to speculate; what is not given is the deployment's default."""

    mode: Annotated[
        Mode | None,
        typer.Option(
            help="plain: no drafts; exact: drafts change nothing; fly: drafts are kept loosely.",
            rich_help_panel=_SPECULATION,
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(help=f"Rule that fly starts from: {', '.join(PRESETS)}.", rich_help_panel=_SPECULATION),
    ] = None
    draft_length: Annotated[
        int | None, typer.Option(min=0, help="Draft tokens per round.", rich_help_panel=_SPECULATION)
    ] = None
    draft_length_policy: Annotated[
        DraftLengthPolicy | None,
        typer.Option(help="Always so long, or at most so long.", rich_help_panel=_SPECULATION),
    ] = None
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Matches that must follow a mismatch.", rich_help_panel=_SPECULATION),
    ] = None
    threshold: Annotated[
        float | None,
        typer.Option(min=0, help="Entropy below which a mismatch is rejected.", rich_help_panel=_SPECULATION),
    ] = None
    tail: Annotated[
        Tail | None,
        typer.Option(help="Of a window that the draft cuts short.", rich_help_panel=_SPECULATION),
    ] = None

    def speculation(self) -> Speculation:
        return Speculation(**asdict(self))


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Where the deployment is, and how to be let in."""

    address: Annotated[
        list[str] | None,
        typer.Option(
            envvar="FLYSERVE_ADDRESS",
            help="host:port of a router; may repeat: the next one is asked when one is away.",
            show_default=DEFAULT_ADDRESS,
            rich_help_panel=_CONNECTION,
        ),
    ] = None
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds until the work is given up.", rich_help_panel=_CONNECTION),
    ] = None
    retries: Annotated[
        int, typer.Option(min=0, help="Further tries where a router is away.", rich_help_panel=_CONNECTION)
    ] = 3
    token: Annotated[
        str | None,
        typer.Option(
            envvar="FLYSERVE_TOKEN", help="API token, better not typed.", rich_help_panel=_CONNECTION
        ),
    ] = None
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt.", rich_help_panel=_CONNECTION)] = False
    tls_root: Annotated[
        Path | None,
        typer.Option(help="Encrypt, and trust these certificates (PEM).", rich_help_panel=_CONNECTION),
    ] = None
    tls_certificate: Annotated[
        Path | None, typer.Option(help="The client's own (PEM).", rich_help_panel=_CONNECTION)
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="Of the client's certificate (PEM).", rich_help_panel=_CONNECTION)
    ] = None

    def client(self) -> Client:
        """A client; the caller closes it.

        Raises:
            ConfigError: A file cannot be read, or a token would travel in plaintext.
        """
        return Client(
            self.address or DEFAULT_ADDRESS, tls=self._tls(), token=self.token, retries=self.retries
        )

    def _tls(self) -> TlsOption:
        if not (self.tls or self.tls_root or self.tls_certificate or self.tls_key):
            return False
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("--tls-certificate and --tls-key belong together")
        return Tls(self.tls_root, self.tls_certificate, self.tls_key)
