"""Leave a Ray node that is about to end: its replicas drain, and nothing is placed there any more."""

import time
from importlib import import_module
from typing import Any

import ray

from fly.errors import NotReady, describe
from orchestration.ray.controller_client import get_result

_ANSWER_S = 30.0
_POLL_S = 0.5
_MARGIN_S = 60.0
"""Time by which Ray's own deadline is later: at its deadline, Ray ends the node with all that runs there."""


def this_node() -> str:
    """Return the id of the Ray node that this process is connected to."""
    return str(ray.get_runtime_context().get_node_id())


def leave_node(controller: Any, node: str, timeout_s: float) -> None:
    """Drain every replica of a deployment on a node; return once none is left there.

    The only replica of a tier keeps serving for half of the time if its successor is not ready before.

    Raises:
        NotReady: Ray does not accept it, or replicas are left after `timeout_s`.
    """
    _close_node(node, timeout_s + _MARGIN_S)
    begin = time.monotonic()
    while True:
        waited_s = time.monotonic() - begin
        left = get_result(controller.leave_node.remote(node, waited_s >= timeout_s / 2), _ANSWER_S)
        if not left:
            return
        if waited_s >= timeout_s:
            raise NotReady(f"after {timeout_s:g} s, the node {node[:8]} still runs {', '.join(sorted(left))}")
        time.sleep(_POLL_S)


def _close_node(node: str, timeout_s: float) -> None:
    """Let Ray place nothing more on a node, which ends once it is idle, or after `timeout_s`.

    NOTE: `GcsClient.drain_node` is private, but Ray 2.60 has no public alternative: the command
    `ray drain-node`, which calls it, is hidden as well. Ray's own autoscaler uses it.
    """
    raylet: Any = import_module("ray._raylet")
    reasons: Any = import_module("ray.core.generated.autoscaler_pb2").DrainNodeReason
    client = raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    deadline_ms = int((time.time() + timeout_s) * 1000)
    reason = reasons.Value("DRAIN_NODE_REASON_PREEMPTION")
    try:
        is_accepted, why_not = client.drain_node(node, reason, "flyserve drain", deadline_ms)
    except Exception as error:  # an unknown node, or no answer
        raise NotReady(f"Ray does not drain the node {node[:8]}: {describe(error)}") from None
    if not is_accepted:
        raise NotReady(f"Ray does not drain the node {node[:8]}: {why_not}")
