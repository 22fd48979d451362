"""Ways in from outside: load balancer, Ingress, routes of the Gateway API."""

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.chart.charts import SECURED, Manifest, one, rendered
from tools.chart import GATEWAY_API, RAY_API, ChartError
from tools.chart_goldens import EXAMPLES

POLICY_API = f"{GATEWAY_API}/BackendTLSPolicy"
SCHEMA = yaml.safe_load((Path(__file__).parent / "gateway.schema.yaml").read_text())
PUBLIC = next(path for path in EXAMPLES if path.stem == "public")
NAMES = {"http": {"hostnames": ["*.example.com"]}, "grpc": {"hostnames": ["grpc.example.org"]}}
ROUTES = {"parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}], **NAMES}
INGRESS = {
    "className": "traefik",
    "http": {"host": "llm.example.com", "tlsSecret": "llm-tls"},
    "grpc": {"host": "grpc.example.com", "annotations": {"protocol": "h2c"}},
}


def of(manifests: list[Manifest], group: str) -> dict[tuple[str, str], Any]:
    """Return the specs of all objects of an API group by kind and name."""
    return {
        (m["kind"], m["metadata"]["name"]): m["spec"] for m in manifests if m["apiVersion"].startswith(group)
    }


def protocols(manifests: list[Manifest]) -> dict[str, str | None]:
    service = one(manifests, "Service", "demo-flyserve")
    return {port["name"]: port.get("appProtocol") for port in service["spec"]["ports"]}


def test_nothing_leads_in_unless_it_is_wanted(tmp_path: Path) -> None:
    manifests = rendered(tmp_path)
    assert of(manifests, GATEWAY_API) == {}
    assert "Ingress" not in {manifest["kind"] for manifest in manifests}
    service = one(manifests, "Service", "demo-flyserve")["spec"]
    assert service["type"] == "ClusterIP"
    assert not {"loadBalancerClass", "loadBalancerSourceRanges"} & service.keys()


def test_each_api_has_a_route_to_a_port_of_the_service(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, {"gateway": ROUTES})
    ports = {p["name"]: p["port"] for p in one(manifests, "Service", "demo-flyserve")["spec"]["ports"]}
    found = of(manifests, GATEWAY_API)
    assert found.keys() == {("HTTPRoute", "demo-flyserve-http"), ("GRPCRoute", "demo-flyserve-grpc")}
    for (_, name), spec in found.items():
        api = name.rpartition("-")[2]
        assert (spec["parentRefs"], spec["hostnames"]) == (ROUTES["parentRefs"], NAMES[api]["hostnames"])
        (rule,) = spec["rules"]
        assert rule["backendRefs"] == [{"name": "demo-flyserve", "port": ports[api]}]
        assert rule.get("timeouts") == ({"request": "0s"} if api == "http" else None)


def test_one_api_can_be_routed_alone(tmp_path: Path) -> None:
    values = {"gateway": {**ROUTES, "http": {"hostnames": []}}, "router": {"http_port": None}}
    assert of(rendered(tmp_path, values), GATEWAY_API).keys() == {("GRPCRoute", "demo-flyserve-grpc")}
    values = {"gateway": {**ROUTES, "http": {**NAMES["http"], "requestTimeout": ""}}}
    route = of(rendered(tmp_path, values), GATEWAY_API)["HTTPRoute", "demo-flyserve-http"]
    assert "timeouts" not in route["rules"][0]


def encrypted(folder: Path) -> list[Manifest]:
    values = {"gateway": {**ROUTES, "backendCa": "routers-ca"}}
    return rendered(folder, values, SECURED, api_versions=(RAY_API, GATEWAY_API, POLICY_API))


def test_gateways_encrypt_towards_routers_that_do(tmp_path: Path) -> None:
    policies = {k: s for k, s in of(encrypted(tmp_path), GATEWAY_API).items() if k[0] == "BackendTLSPolicy"}
    assert len(policies) == 2
    for (_, name), spec in policies.items():
        (target,) = spec["targetRefs"]
        assert (target["name"], target["sectionName"]) == ("demo-flyserve", name.rpartition("-")[2])
        # The name that the certificate of every router has.
        assert spec["validation"]["hostname"] == "router.flyserve"
        assert spec["validation"]["caCertificateRefs"][0]["name"] == "routers-ca"


def test_the_gateway_api_knows_every_field(tmp_path: Path) -> None:
    shown = [
        *rendered(tmp_path, {"gateway": ROUTES}),
        *rendered(tmp_path, None, PUBLIC),
        *encrypted(tmp_path),
    ]
    routes = [manifest for manifest in shown if manifest["apiVersion"] == GATEWAY_API]
    assert len(routes) == 8
    for route in routes:
        jsonschema.validate(route, SCHEMA)


def test_ports_name_protocols_that_gateways_take(tmp_path: Path) -> None:
    assert protocols(rendered(tmp_path)) == {"grpc": "kubernetes.io/h2c", "http": "http"}
    # No name means gRPC over TLS: gateways ask by ALPN.
    assert protocols(rendered(tmp_path, None, SECURED)) == {"grpc": None, "http": "https"}
    values = {"service": {"appProtocols": {"grpc": "HTTP2", "http": "HTTPS"}}}
    assert protocols(rendered(tmp_path, values, SECURED)) == {"grpc": "HTTP2", "http": "HTTPS"}


@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_kubernetes_takes_the_load_balancer_and_the_ingresses(version: str, tmp_path: Path) -> None:
    service = {
        "type": "LoadBalancer",
        "loadBalancerClass": "service.k8s.aws/nlb",
        "loadBalancerSourceRanges": ["203.0.113.0/24", "2001:db8::/32"],
    }
    manifests = rendered(tmp_path, {"service": service, "ingress": INGRESS})
    balancer = one(manifests, "Service", "demo-flyserve")
    assert service.items() <= balancer["spec"].items()
    ingresses = [manifest for manifest in manifests if manifest["kind"] == "Ingress"]
    for manifest in (balancer, *ingresses):
        kubernetes_validate.validate(manifest, version, strict=True)
    http, grpc = ingresses
    assert http["spec"]["tls"] == [{"hosts": ["llm.example.com"], "secretName": "llm-tls"}]
    assert grpc["metadata"]["annotations"] == {"protocol": "h2c"} and "tls" not in grpc["spec"]
    for ingress in ingresses:
        assert ingress["spec"]["ingressClassName"] == "traefik"
        (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
        port = path["backend"]["service"]["port"]["name"]
        assert ingress["metadata"]["name"] == f"demo-flyserve-{port}"
        assert port in {p["name"] for p in balancer["spec"]["ports"]}


WITHOUT_HTTP = {"router": {"http_port": None}}
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "class of no load balancer": (
        {"service": {"loadBalancerClass": "nlb"}},
        ("service.loadBalancerClass", "service.type is ClusterIP", "LoadBalancer"),
    ),
    "networks of no load balancer": (
        {"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"], "type": "NodePort"}},
        ("service.loadBalancerSourceRanges", "service.type is NodePort"),
    ),
    "network that is none": (
        {"service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.1"]}},
        ("loadBalancerSourceRanges", "pattern"),
    ),
    "host with a scheme": (
        {"ingress": {"http": {"host": "https://x.org"}}},
        ("ingress.http.host", "pattern"),
    ),
    "Ingress without HTTP": (
        {"ingress": INGRESS, **WITHOUT_HTTP},
        ("ingress.http.host: is llm.example.com", "router.http_port is null"),
    ),
    "one host of two protocols": (
        {"ingress": {"http": {"host": "x.org"}, "grpc": {"host": "x.org"}}},
        ("ingress.grpc.host: is x.org", "give each its own"),
    ),
    "certificate of no host": (
        {"ingress": {"grpc": {"tlsSecret": "tls"}}},
        ("ingress.grpc.tlsSecret: is tls", "ingress.grpc.host is empty"),
    ),
    "routes without a Gateway": ({"gateway": NAMES}, ("gateway.parentRefs: is empty", "name the Gateway")),
    "a Gateway without routes": (
        {"gateway": {"parentRefs": ROUTES["parentRefs"]}},
        ("gateway.parentRefs: are set", "gateway.http.hostnames"),
    ),
    "route without HTTP": (
        {"gateway": ROUTES, **WITHOUT_HTTP},
        ("gateway.http.hostnames", "router.http_port is null"),
    ),
    "two routes of one name": (
        {"gateway": {**ROUTES, "http": NAMES["grpc"]}},
        ("gateway.grpc.hostnames: grpc.example.org", "give each its own"),
    ),
    "limit that is no time": (
        {"gateway": {**ROUTES, "http": {**NAMES["http"], "requestTimeout": "1 hour"}}},
        ("gateway.http.requestTimeout", "pattern"),
    ),
    "authority of nothing": (
        {"gateway": {"backendCa": "ca"}},
        ("gateway.backendCa: is ca", "security.tls is null"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ways_that_lead_nowhere_are_rejected_with_key_and_remedy(case: str, tmp_path: Path) -> None:
    values, parts = REFUSED[case]
    with pytest.raises(ChartError) as rejection:
        rendered(tmp_path, values)
    assert all(part in str(rejection.value) for part in parts), rejection.value


def test_a_cluster_without_the_gateway_api_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ChartError, match=r"gateway: .* Gateway API: install it, 1\.1 or later"):
        rendered(tmp_path, {"gateway": ROUTES}, api_versions=(RAY_API,))


def test_a_gateway_that_cannot_encrypt_towards_routers_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ChartError, match=r"gateway\.backendCa: is empty, but security\.tls is set"):
        rendered(tmp_path, {"gateway": ROUTES}, SECURED)
    with pytest.raises(ChartError, match="does not know BackendTLSPolicy"):
        rendered(tmp_path, {"gateway": {**ROUTES, "backendCa": "ca"}}, SECURED)
