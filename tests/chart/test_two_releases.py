"""Two releases live side by side: in one namespace, behind one gateway, with names that begin alike."""

from pathlib import Path

from tests.chart.charts import Manifest, one, pod_templates, rendered


def test_two_models_are_two_releases_behind_one_gateway(tmp_path: Path) -> None:
    """docs/kubernetes/secure.md: each model has names, pods, selectors and alerts of its own."""
    gateway = {"parentRefs": [{"name": "public", "namespace": "gateways"}]}

    def release(name: str) -> list[Manifest]:
        hostnames = {"http": {"hostnames": [f"{name}.llm.example.com"]}}
        return rendered(tmp_path, {"gateway": {**gateway, **hostnames}}, release=name)

    small, large = release("small"), release("large")

    def names(manifests: list[Manifest]) -> set[tuple[str, str]]:
        return {(m["kind"], m["metadata"]["name"]) for m in manifests}

    assert not names(small) & names(large)
    routes = [one(manifests, "HTTPRoute")["spec"] for manifests in (small, large)]
    assert (
        routes[0]["parentRefs"] == routes[1]["parentRefs"]
        and routes[0]["hostnames"] != routes[1]["hostnames"]
    )
    for manifests in (small, large):
        (backend,) = one(manifests, "HTTPRoute")["spec"]["rules"][0]["backendRefs"]
        services = [
            m for m in manifests if m["kind"] == "Service" and m["metadata"]["name"] == backend["name"]
        ]
        assert len(services) == 1
        selector = services[0]["spec"]["selector"].items()
        chosen = [
            pod
            for each in (small, large)
            for pod in pod_templates(each)
            if selector <= pod["metadata"]["labels"].items()
        ]
        assert chosen == [one(manifests, "Deployment")["spec"]["template"]]


def test_long_names_of_releases_that_begin_alike_differ(tmp_path: Path) -> None:
    begin = "production-serving-of-large-models"
    made = {
        one(rendered(tmp_path, release=f"{begin}-{end}"), "RayCluster")["metadata"]["name"]
        for end in ("eu", "us")
    }
    assert len(made) == 2 and all(len(name) <= 53 for name in made)
    # Names that fit stay as they are.
    assert (
        one(rendered(tmp_path, release="a" * 23), "RayCluster")["metadata"]["name"]
        == f"{'a' * 23}-flyserve-blue"
    )
