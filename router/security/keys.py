"""API keys: a file with their hashes, the lookup of a token's caller, and new keys."""

import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import ConfigDict, Field, StringConstraints

from flyserve.core.errors import ConfigError, Unauthenticated
from flyserve.whole_file import check_writable, write_whole
from services.common.config import Config, load_yaml, parse
from services.common.security.files import WatchedFiles

_LONGEST_TOKEN = 512
_MOST_KEYS = 10_000

KeyName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class KeyConfig(Config):
    """One API key.

    A token has 256 random bits, so a plain hash is enough: it cannot be guessed.

    Attributes:
        sha256: SHA-256 of the token, in hexadecimal.
        max_concurrent: Requests of this key at one router that are read, wait or run; null sets no limit.
            A request counts before its body is read, and each prompt of a batch counts as one.
        requests_per_minute: Requests of this key per minute at one router, also as one burst; null sets no
            limit.
    """

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    max_concurrent: int | None = Field(None, ge=1)
    requests_per_minute: int | None = Field(None, ge=1)


class KeysConfig(Config):
    """A file of API keys by the name of their holder."""

    # An invalid hash may be a token that was entered by mistake.
    model_config = ConfigDict(hide_input_in_errors=True)

    keys: Annotated[dict[KeyName, KeyConfig], Field(max_length=_MOST_KEYS)]


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request.

    Attributes:
        name: Name of the API key; "" if the router requires none.
        max_concurrent: Running and queued requests; None sets no limit.
        requests_per_minute: Requests per minute; None sets no limit.
    """

    name: str = ""
    max_concurrent: int | None = None
    requests_per_minute: int | None = None

    def salted(self, cache_salt: str) -> str:
        """Return a cache salt that no other caller can produce, whatever its requests contain.

        NOTE: its length is fixed, so limits on a salt apply to the request's own salt.
        """
        if not self.name:
            return cache_salt
        return hashlib.sha256(f"{self.name}\0{cache_salt}".encode()).hexdigest()


ANONYMOUS = Caller()


def hash_of(token: str) -> str:
    """Return the hash of a token, as stored in the file."""
    return hashlib.sha256(token.encode()).hexdigest()


class Keys:
    """The keys of a file; reloaded when it changes."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: It cannot be read, or breaks a limit.
        """
        self._file = WatchedFiles((path,), lambda: _load(path))

    def caller(self, authorization: str) -> Caller:
        """Return the caller that holds the token of a header `Bearer TOKEN`.

        Raise Unauthenticated if there is no token, or no key has it.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("an API key is needed: authorization: Bearer KEY")
        if len(token) > _LONGEST_TOKEN:
            raise Unauthenticated("the API key is not known")
        presented, found = hash_of(token).encode(), None
        # NOTE: all keys are compared, each in constant time: the duration reveals nothing about any of them.
        for known, caller in self._file.current().items():
            if hmac.compare_digest(known, presented):
                found = caller
        if found is None:
            raise Unauthenticated("the API key is not known")
        return found


def _load(path: Path) -> Mapping[bytes, Caller]:
    callers: dict[bytes, Caller] = {}
    for name, key in load_yaml(KeysConfig, path).keys.items():
        if key.sha256.encode() in callers:
            raise ConfigError(f"{path}: keys.{name}: has the token of {callers[key.sha256.encode()].name}")
        callers[key.sha256.encode()] = Caller(name, key.max_concurrent, key.requests_per_minute)
    return callers


PREFIX = "flyserve-"
"""Prefix of every token, so that scanners for leaked secrets recognize it."""
_TOKEN_BYTES = 32
_LOCK_S = 10.0
"""Longest wait for other processes that add keys."""
_LOCK_POLL_S = 0.05


def issue_key(
    file: Path, name: str, limits: dict[str, int | None], show: Callable[[str], None] = lambda token: None
) -> str:
    """Add a key to a file, created if missing, and return its token; `limits` are fields of `KeyConfig`.

    The file is replaced atomically, readable by its owner only; keys that are issued at the same time are
    added one after the other. `show` gets the token before: if it raises, there is no key whose token nobody
    has seen. Raise ConfigError if the file is invalid or cannot be written, or the name is taken.
    """
    token = PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    given = {field: value for field, value in limits.items() if value is not None}
    key = {name: {"sha256": hash_of(token), **given}}
    parse(KeysConfig, {"keys": key}, str(file))  # a faulty one leaves no new folder
    with _only_writer(file):
        known = load_yaml(KeysConfig, file).model_dump(exclude_none=True)["keys"] if file.exists() else {}
        if name in known:
            raise ConfigError(f"{file}: keys.{name}: already exists; remove it first, or choose another name")
        whole: dict[str, Any] = {"keys": {**known, **key}}
        parse(KeysConfig, whole, str(file))
        check_writable(file)
        show(token)
        write_whole(file, yaml.safe_dump(whole, sort_keys=False))
    return token


@contextmanager
def _only_writer(file: Path) -> Iterator[None]:
    """Keep other processes from adding a key while the block runs.

    NOTE: the lock is that of the folder, because the file is replaced by another one. There is none in a
    folder that may be written but not read.
    """
    if (folder := _opened_folder(file)) is None:
        yield
        return
    try:
        _lock(folder, file)
        yield
    finally:
        os.close(folder)


def _opened_folder(file: Path) -> int | None:
    """Open the folder of a file, created if missing; return None if it may not be read."""
    folder = Path(os.path.realpath(file)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):
            return os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
    return None


def _lock(folder: int, file: Path) -> None:
    """Lock an open folder; do nothing if its file system has no locks, as some on networks.

    Raise ConfigError after a while: any process that may read the folder may hold its lock for ever.
    """
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{file} cannot be written: another process holds a lock on its folder"
                ) from None
        except OSError:
            return
        time.sleep(_LOCK_POLL_S)
