"""Check that a new target has the token map of the running routers."""

from fly.errors import ConfigError
from orchestration.deployment.file import Deployment
from services.common.token_map import token_map_hash


def require_same_tokens(before: Deployment, after: Deployment) -> None:
    """Reject a target whose token map differs from that of the running routers.

    Only folders that can be read here are compared; a router asks every target itself when it starts.

    Raises:
        ConfigError: The maps differ.
        ModelError: A map cannot be read.
    """
    old, new = before.target.model, after.target.model
    if old == new or not (old.is_dir() and new.is_dir()):
        return
    if (known := token_map_hash(old)) and (other := token_map_hash(new)) and known != other:
        raise ConfigError(
            f"target.model: {new} maps tokens to other ids than {old}, which the running routers use: end"
            " the deployment first with flyserve down, or apply this under another name (key name)"
        )
