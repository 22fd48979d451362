"""Create API keys: the token is shown once, the file stores its hash."""

import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

import yaml

from fly.errors import ConfigError
from router.security.keys import KeysConfig, hash_of, read_keys
from services.common.config import parse

PREFIX = "flyserve-"
"""Prefix of every token, so that scanners for leaked secrets recognize it."""
_TOKEN_BYTES = 32


def issue_key(file: Path, name: str, limits: dict[str, int | None]) -> str:
    """Add a key to a file, created if missing, and return its token.

    Args:
        file: File of keys; replaced atomically, readable by its owner only.
        name: Name of the key's holder.
        limits: Fields of `KeyConfig`.

    Raises:
        ConfigError: The file is invalid or cannot be written, or the name is taken.
    """
    known = read_keys(file).model_dump(exclude_none=True)["keys"] if file.exists() else {}
    if name in known:
        raise ConfigError(f"{file}: keys.{name}: already exists; remove it first, or choose another name")
    token = PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    given = {field: value for field, value in limits.items() if value is not None}
    whole: dict[str, Any] = {"keys": {**known, name: {"sha256": hash_of(token), **given}}}
    parse(KeysConfig, whole, str(file))
    _write(file, yaml.safe_dump(whole, sort_keys=False))
    return token


def _write(file: Path, text: str) -> None:
    # NOTE: mkstemp creates a file that only its owner can read.
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as new:
                new.write(text)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
