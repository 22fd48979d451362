"""The token-to-id map of a model folder and its hash, which models that exchange token ids must share."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from fly.errors import ModelError


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
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is not a tokenizer: {type(error).__name__}: {error}") from error
    return {**vocab, **added}


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
