"""A router's pod on a real node, without KubeRay's operator: rights, probes, its end while it waits."""

import pytest

from tests.cluster.cluster_rig import Cluster, Failed, Values

ROUTER = "flyserve.io/role=router"
SMALL = {"requests": {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "64Mi"}}


@pytest.fixture(scope="module")
def pod(cluster: Cluster, image: Values) -> str:
    """The name of a router's pod that runs and waits for a target."""
    cluster.install("one", {"image": image, "pods": {"router": {"replicas": 1, "resources": SMALL}}})
    return cluster.wait_for(lambda: running(cluster))


def running(cluster: Cluster) -> str:
    pods = cluster.get("pods", "--selector", ROUTER)["items"]
    return next(
        (each["metadata"]["name"] for each in pods if status_of(each).get("state", {}).get("running")), ""
    )


def status_of(pod: Values) -> Values:
    """The status of a pod's container; none yet if nothing started."""
    return next(iter(pod["status"].get("containerStatuses", [])), {})


def python(cluster: Cluster, pod: str, code: str) -> str:
    return cluster.kubectl("exec", pod, "--", "python", "-c", code).strip()


def test_a_router_runs_without_rights_on_a_root_that_it_cannot_write(pod: str, cluster: Cluster) -> None:
    assert python(cluster, pod, "import os; print(os.getuid(), os.getgid())") == "10001 10001"
    capabilities = python(cluster, pod, "print(open('/proc/self/status').read())")
    assert "CapEff:\t0000000000000000" in capabilities and "NoNewPrivs:\t1" in capabilities
    for path in ("/app/x", "/usr/x", "/home/flyserve/x"):
        with pytest.raises(Failed, match="Read-only file system"):
            python(cluster, pod, f"open({path!r}, 'w')")
    python(cluster, pod, "open('/tmp/x', 'w')")


def test_probes_leave_a_router_alone_that_waits_for_its_target(pod: str, cluster: Cluster) -> None:
    failed = ("--field-selector", f"involvedObject.name={pod},reason=Unhealthy")
    cluster.wait_for(lambda: cluster.get("events", *failed)["items"])
    status = status_of(cluster.get("pod", pod))
    assert status["restartCount"] == 0 and not status["ready"] and not status["started"]


def test_a_router_that_waits_for_its_target_ends_at_sigterm(pod: str, cluster: Cluster) -> None:
    """It runs as process 1, which has no default action for a signal."""
    python(cluster, pod, "import os, signal; os.kill(1, signal.SIGTERM)")
    last = cluster.wait_for(lambda: status_of(cluster.get("pod", pod)).get("lastState", {}).get("terminated"))
    assert last["exitCode"] in (0, 143), last


def test_uninstallation_does_not_wait_for_the_whole_grace_period(pod: str, cluster: Cluster) -> None:
    grace = cluster.get("pod", pod)["spec"]["terminationGracePeriodSeconds"]
    assert grace > 300
    cluster.helm("uninstall", "one")
    cluster.kubectl("wait", f"pod/{pod}", "--for=delete", f"--timeout={grace - 20}s")
