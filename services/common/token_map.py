"""Token ids of a model folder: the token-to-id map and its hash, and the ids that end a response."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyserve.core.errors import ModelError, one_line


def read_token_map(folder: Path) -> dict[str, int]:
    """Read the map from token to id, added tokens included, from `tokenizer.json`; empty if there is none.

    Raises:
        ModelError: The file cannot be read as a tokenizer.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        vocab = content["model"]["vocab"]
        if isinstance(vocab, list):  # Unigram: [token, score] by id
            vocab = {token: token_id for token_id, (token, _) in enumerate(vocab)}
        added = {token["content"]: token["id"] for token in content.get("added_tokens", ())}
        token_map = {**vocab, **added}
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is not a tokenizer: {type(error).__name__}: {error}") from error
    for token, token_id in token_map.items():
        if type(token) is not str or type(token_id) is not int or token_id < 0:
            raise ModelError(f"{path} is not a tokenizer: the id of {token!r} is {token_id!r}")
    return token_map


def hash_token_map(token_map: Mapping[str, int]) -> str:
    """Return a hash of the map that does not depend on its order; empty for an empty map."""
    if not token_map:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for token_id, token in sorted((token_id, token) for token, token_id in token_map.items()):
        encoded = token.encode("utf-8", "surrogatepass")
        digest.update(b"%d %d " % (token_id, len(encoded)))
        digest.update(encoded)
    return digest.hexdigest()


def token_map_hash(folder: Path) -> str:
    """Return the hash of the folder's token map; empty if it has no `tokenizer.json`."""
    return hash_token_map(read_token_map(folder))


def num_token_ids(token_map: Mapping[str, int]) -> int:
    """Return the upper bound of the token ids, exclusive."""
    return max(token_map.values(), default=-1) + 1


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty if there is no such file; raise ModelError if it is not JSON."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: is not JSON: {one_line(error)}") from None
    return data if isinstance(data, dict) else {}


def read_eos_ids(folder: Path) -> tuple[int, ...] | None:
    """Return the ids that end a response, by the generation config, else the model's; None if neither does.

    Raises:
        ModelError: A file is not JSON, or names something else than ids.
    """
    for path in (folder / "generation_config.json", folder / "config.json"):
        if (found := read_json(path).get("eos_token_id")) is not None:
            ids = found if isinstance(found, list) else [found]
            if (other := next((each for each in ids if type(each) is not int or each < 0), None)) is not None:
                raise ModelError(f"{path}: eos_token_id holds {other!r}, must be ids of tokens")
            return tuple(ids)
    return None
