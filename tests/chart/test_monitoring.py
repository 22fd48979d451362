"""Monitors, dashboards and alert rules select the metrics of their own release."""

import json
from pathlib import Path
from typing import Any

from flyserve.core.messages import Role
from orchestration.deployment.plan import metrics_port, plan
from tests.chart.charts import Manifest, deployments, one, rendered
from tests.chart.test_configuration import ports_of
from tools.chart import RAY_API


def test_monitors_scrape_the_ports_at_which_metrics_are_told(tmp_path: Path) -> None:
    values: Any = {
        "monitoring": {"serviceMonitor": {"enabled": True}, "dashboards": {"enabled": True}},
        "pods": {"target": {"replicasPerPod": 2}},
    }
    apis = (RAY_API, "monitoring.coreos.com/v1")
    manifests = rendered(tmp_path, values, api_versions=apis)
    (made,) = deployments(manifests, tmp_path)
    ports = ports_of(manifests, "target", "drafter", "sub_drafter")
    scraped = {end["port"] for end in one(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"]}
    used = {spec.config["telemetry"]["metrics_port"] for spec in plan(made, "registry:1")}
    # Two targets share a pod, and take the first two ports of their tier.
    expected = used | {metrics_port(made.telemetry, Role.TARGET, 1)}
    # Ray's own: at the port that KubeRay gives it, in the head's pod, too.
    assert {ports[name] for name in scraped} == expected | {8080}
    assert ports_of(manifests, "head")["metrics"] == 8080
    policy = one(manifests, "NetworkPolicy", "-ray")["spec"]["ingress"][-1]
    assert {"port": 8080, "protocol": "TCP"} in policy["ports"]
    (endpoint,) = one(manifests, "ServiceMonitor")["spec"]["endpoints"]
    assert ports_of(manifests, "router")[endpoint["port"]] == made.telemetry.metrics_port
    # The dashboard chooses by this label of the pods.
    for kind in ("ServiceMonitor", "PodMonitor"):
        assert "flyserve.io/deployment" in one(manifests, kind)["spec"]["podTargetLabels"]
    values["monitoring"]["serviceMonitor"]["ray"] = False
    monitor = one(rendered(tmp_path, values, api_versions=apis), "PodMonitor")
    assert {ports[end["port"]] for end in monitor["spec"]["podMetricsEndpoints"]} == expected
    # Its queries are held against the code's metrics where those are tested.
    dashboards = one(manifests, "ConfigMap", "-dashboards")["data"]
    ((name, text),) = dashboards.items()
    dashboard = json.loads(text)
    assert dashboard["panels"] and name == "serving-demo-flyserve-flyserve.json"
    chosen = {v["name"]: v["current"].get("value") for v in dashboard["templating"]["list"][1:]}
    assert chosen == {"namespace": "serving", "deployment": "demo-flyserve"}
    # Grafana has all dashboards in one folder, where each of these is its own.
    other = json.loads(
        *one(rendered(tmp_path, values, release="b", api_versions=apis), "ConfigMap", "-dashboards")[
            "data"
        ].values()
    )
    assert other["uid"] != dashboard["uid"] and other["title"] != dashboard["title"]


def test_alert_rules_are_those_of_the_release(tmp_path: Path) -> None:
    apis = (RAY_API, "monitoring.coreos.com/v1")
    monitoring: dict[str, Any] = {"alerts": {"enabled": True}, "serviceMonitor": {"enabled": True}}

    def rules() -> list[Manifest]:
        manifests = rendered(tmp_path, {"monitoring": monitoring}, api_versions=apis)
        (group,) = one(manifests, "PrometheusRule")["spec"]["groups"]
        assert len(group["rules"]) >= 10
        return group["rules"]

    own = 'namespace="serving", flyserve_io_deployment="demo-flyserve"'
    for rule in rules():
        # Each metric is selected: another release in the namespace neither fires nor hides an alert.
        assert rule["expr"].count(own) == rule["expr"].count("{") > 0
        # Alertmanager tells the alerts of two releases apart.
        assert rule["labels"]["flyserve_io_deployment"] == "demo-flyserve" and rule["labels"]["severity"]
    # Other monitors than the chart's may not give this label.
    monitoring["serviceMonitor"]["enabled"] = False
    for rule in rules():
        assert 'namespace="serving"' in rule["expr"] and "flyserve_io" not in rule["expr"]


def test_a_deployment_that_scales_to_zero_has_no_alert_that_it_is_idle(tmp_path: Path) -> None:
    def alerts(values: dict[str, Any]) -> set[str]:
        monitored = {"monitoring": {"alerts": {"enabled": True}}, **values}
        manifests = rendered(tmp_path, monitored, api_versions=(RAY_API, "monitoring.coreos.com/v1"))
        (group,) = one(manifests, "PrometheusRule")["spec"]["groups"]
        return {rule["alert"] for rule in group["rules"]}

    always = alerts({"target": {"autoscaling": {"min": 1, "max": 4}}})
    idle = {"target": {"autoscaling": {"min": 0, "max": 4}}, "router": {"replica_wait_s": 300}}
    assert always - alerts(idle) == {"FlyServeNoTarget"} and alerts(idle) < always
