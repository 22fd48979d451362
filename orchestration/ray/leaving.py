"""Leave a Ray node that is about to end: its replicas drain, and nothing is placed there any more."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import ray

from flyserve.core.errors import NotReady, describe
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
        NotReady: Ray does not accept it, replicas are left after `timeout_s`, or the controller has not
            answered for all that time: it may be restarting, so calls that fail are repeated.
    """
    _close_node(node, timeout_s + _MARGIN_S)
    follow_leaving(partial(_replicas_left, controller, node), node, timeout_s)


def follow_leaving(
    replicas_left: Callable[[bool, float], Sequence[str]],
    node: str,
    timeout_s: float,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Call `replicas_left` until it returns none; a call that fails is repeated until `timeout_s` is over.

    Its arguments: whether the matter is urgent, from half of the time on, and the time limit of the call.

    Raises:
        NotReady: The time is over.
    """
    begin = now()
    while True:
        waited_s = now() - begin
        try:
            answer_s = min(_ANSWER_S, max(timeout_s - waited_s, _POLL_S))
            left = replicas_left(waited_s >= timeout_s / 2, answer_s)
        except NotReady as error:
            fault = str(error)
        else:
            if not left:
                return
            fault = f"it still runs {', '.join(sorted(left))}"
        if now() - begin >= timeout_s:
            raise NotReady(f"after {timeout_s:g} s, the node {node[:8]} cannot end: {fault}")
        pause(_POLL_S)


def _replicas_left(controller: Any, node: str, is_urgent: bool, timeout_s: float) -> Sequence[str]:
    left: Sequence[str] = get_result(controller.leave_node.remote(node, is_urgent), timeout_s)
    return left


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
