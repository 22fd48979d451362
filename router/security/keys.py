"""API keys: a file with the hash of each, and the one comparison that finds out whose a token is."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from fly.errors import ConfigError, Unauthenticated
from services.common.config import Config, load_yaml
from services.common.security.files import WatchedFiles

_LONGEST_TOKEN = 512
_MOST_KEYS = 10_000

KeyName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class KeyConfig(Config):
    """One API key.

    A token is drawn at random from 2^256, so a plain hash is enough: there is nothing to proposal.

    Attributes:
        sha256: Of the token, in hexadecimal.
        max_concurrent: Requests of this key that a router has in work or waiting; null sets no limit.
        requests_per_minute: Of this key at one router; as many may come at once. null sets no limit.
    """

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    max_concurrent: int | None = Field(None, ge=1)
    requests_per_minute: int | None = Field(None, ge=1)


class KeysConfig(Config):
    """A file of API keys.

    Attributes:
        keys: By the name of whoever holds each.
    """

    # What is no hash may be a token that somebody put in its place.
    model_config = ConfigDict(hide_input_in_errors=True)

    keys: Annotated[dict[KeyName, KeyConfig], Field(max_length=_MOST_KEYS)]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request.

    Attributes:
        name: Of the API key; "" where the router asks for none.
        max_concurrent: Requests in work or waiting; None sets no limit.
        requests_per_minute: None sets no limit.
    """

    name: str = ""
    max_concurrent: int | None = None
    requests_per_minute: int | None = None

    def salted(self, cache_salt: str) -> str:
        """A cache salt that no other caller can have, whatever the requests say.

        NOTE: of one length, so that limits on a salt are limits on what the request says.
        """
        if not self.name:
            return cache_salt
        return hashlib.sha256(f"{self.name}\0{cache_salt}".encode()).hexdigest()


ANYBODY = Caller()


def hash_of(token: str) -> str:
    """What a file keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Keys:
    """The keys of a file, which may change at any time."""

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Raises:
            ConfigError: It cannot be read, or breaks a limit.
        """
        self._file = WatchedFiles((path,), lambda: _load(path))

    def caller(self, authorization: str) -> Caller:
        """Whose token this is.

        Args:
            authorization: As the client sends it: `Bearer`, then the token.

        Raises:
            Unauthenticated: There is none, or nobody has it.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("an API key is needed: authorization: Bearer KEY")
        if len(token) > _LONGEST_TOKEN:
            raise Unauthenticated("the API key is not known")
        presented, found = hash_of(token).encode(), None
        # NOTE: all are compared, each in constant time: how long it takes tells nothing of any of them.
        for known, caller in self._file.current().items():
            if hmac.compare_digest(known, presented):
                found = caller
        if found is None:
            raise Unauthenticated("the API key is not known")
        return found


def read_keys(path: Path) -> KeysConfig:
    """What a file says.

    Raises:
        ConfigError: It cannot be read, or breaks a limit; no hash is told.
    """
    return load_yaml(KeysConfig, path)


def _load(path: Path) -> Mapping[bytes, Caller]:
    callers: dict[bytes, Caller] = {}
    for name, key in read_keys(path).keys.items():
        if key.sha256.encode() in callers:
            raise ConfigError(f"{path}: keys.{name}: has the token of {callers[key.sha256.encode()].name}")
        callers[key.sha256.encode()] = Caller(name, key.max_concurrent, key.requests_per_minute)
    return callers
