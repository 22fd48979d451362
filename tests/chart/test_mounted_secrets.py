"""The rendered processes start with mounted certificates and API keys, and read changed ones."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from fly.endpoints import Endpoint
from fly.errors import NotReady, Unauthenticated
from fly.messages import Role
from flyserve import AsyncClient, SpeculationParams, Tls
from orchestration.control.registry import Registry, registry_service
from orchestration.deployment.file import Deployment, load_deployment
from orchestration.deployment.plan import plan, router_config
from orchestration.deployment.security import controller_identity, registry_access_policy, security_of
from router.config import RouterConfig
from router.server import create_host as create_router
from services.common.channel import open_channel
from services.common.config import parse
from services.common.host import Host
from services.common.security.identity import CONTROLLER
from services.drafter.config import DrafterConfig
from services.drafter.servicer import create_host as create_drafter
from services.lookup.config import LOOKUPS
from services.lookup.servicer import create_host as create_sub_drafter
from services.target.config import TargetConfig
from services.target.servicer import create_host as create_target
from tests.chart.charts import SECRETS, SECURED, Manifest, fill, one, pod_templates, rendered
from tests.contract.fakes import save_tokenizer
from tests.support.secret_mounts import MountedSecrets
from tests.support.serving import serving

SIMULATED = {"simulated": {"base_s": 0.001, "vocab_size": 304}}


@pytest.fixture
def manifests(tmp_path: Path) -> list[Manifest]:
    return rendered(tmp_path, None, SECURED)


def deployment(manifests: list[Manifest], root: Path) -> Deployment:
    """That of the ConfigMap, with the folder that stands for the root of the pods."""
    text = one(manifests, "ConfigMap", "-config")["data"]["deployment-blue.yaml"]
    (file := root / "deployment.yaml").write_text(text.replace(SECRETS, f"{root}{SECRETS}"), encoding="utf-8")
    return load_deployment(file)


@asynccontextmanager
async def started(made: Deployment, folder: Path) -> AsyncIterator[Host]:
    """The router of a deployment in front of its other services, with simulated models and free ports."""
    async with AsyncExitStack() as stack:

        async def serve(host: Host) -> str:
            return await stack.enter_async_context(serving(host))

        registry = Registry()
        access_policy = registry_access_policy(controller_identity(security_of(made.security, CONTROLLER)))
        address = await serve(Host(registry_service(registry), access_policy=access_policy))
        said = {spec.role: {"security": spec.config["security"]} for spec in plan(made, address)}
        helper = await serve(await create_sub_drafter(parse(LOOKUPS, said[Role.SUB_DRAFTER], "test")))
        drafts = {**said[Role.DRAFTER], **SIMULATED, "sub_drafter": helper}
        drafter = await serve(await create_drafter(parse(DrafterConfig, drafts, "test")))
        verifies = {**said[Role.TARGET], **SIMULATED}
        target = await serve(await create_target(parse(TargetConfig, verifies, "test")))
        registry.publish(
            (Endpoint(Role.TARGET, target, "target-0"), Endpoint(Role.DRAFTER, drafter, "drafter-0"))
        )
        config = router_config(made, address, 60.0, 5.0)
        here = {"model": save_tokenizer(folder), "host": "127.0.0.1", "grpc_port": 0, "http_port": 0}
        config |= {**here, "telemetry": {}, "security": {**config["security"], "health_port": 0}}
        router = await create_router(parse(RouterConfig, config, "test"))
        await serve(router)
        yield router


def client(router: Host, root: Path, token: str) -> AsyncClient:
    """Build a client with the credentials of the pod of `helm test`."""
    folder = root / SECRETS.removeprefix("/")
    own = folder / "tls" / "client"
    tls = Tls(folder / "ca" / "ca.crt", own / "tls.crt", own / "tls.key")
    return AsyncClient(f"localhost:{router.port}", tls=tls, token=token, retries=0)


async def drafted(router: Host, root: Path, token: str) -> None:
    """Generate until a response has drafts, for which its rounds wait: on a busy machine they come late."""
    waits = SpeculationParams(reproducible_drafts=True)
    async with client(router, root, token) as asking:
        while not (await asking.generate("Ada has", 24, speculation=waits)).statistics.drafted:
            pass


async def test_what_is_mounted_is_what_every_process_starts_with(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    secrets = MountedSecrets(pod_templates(manifests), tmp_path)
    token = fill(secrets, tmp_path / "first")
    async with started(deployment(manifests, tmp_path), tmp_path) as router:
        await drafted(router, tmp_path, token)
        with pytest.raises(Unauthenticated):
            await drafted(router, tmp_path, "flyserve-nobody")
        async with AsyncClient(f"localhost:{router.port}", retries=0) as plain:
            with pytest.raises(NotReady):
                await plain.info(240.0)
        async with open_channel(f"127.0.0.1:{router.health_port}") as channel:
            probe = HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="flyserve.v1.Generation"), timeout=240
            )
            assert (await probe).status == health_pb2.HealthCheckResponse.SERVING


async def test_secrets_that_change_are_followed_without_a_restart(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    secrets = MountedSecrets(pod_templates(manifests), tmp_path)
    old_token = fill(secrets, tmp_path / "first")
    old_ca = (tmp_path / "first" / "ca.pem").read_bytes()
    async with started(deployment(manifests, tmp_path), tmp_path) as router:
        await drafted(router, tmp_path, old_token)
        # Everything is new: the authority, every certificate, the keys.
        token = fill(secrets, tmp_path / "second")
        await drafted(router, tmp_path, token)
        with pytest.raises(Unauthenticated):
            await drafted(router, tmp_path, old_token)
        former = grpc.ssl_channel_credentials(old_ca)
        async with grpc.aio.secure_channel(f"localhost:{router.port}", former) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as rejected:
                await HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=240)
        assert rejected.value.code() is grpc.StatusCode.UNAVAILABLE


def mounts(pod: Any) -> dict[str, str]:
    """Folder by folder, which Secret is there."""
    names = {v["name"]: v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v}
    container = pod["spec"]["containers"][0]
    return {m["mountPath"]: names[m["name"]] for m in container["volumeMounts"] if m["name"] in names}


def test_a_pod_has_the_certificates_of_its_roles_and_no_others(manifests: list[Manifest]) -> None:
    found = {pod["metadata"]["labels"]["flyserve.io/role"]: mounts(pod) for pod in pod_templates(manifests)}

    def certificates(*roles: str) -> dict[str, str]:
        return {f"{SECRETS}/tls/{role}": f"flyserve-{role}-tls" for role in roles}

    keys = {f"{SECRETS}/api-keys": "flyserve-api-keys"}
    assert found == {
        "router": certificates("router") | keys,
        "head": certificates("controller"),
        # The drafter is its guest.
        "target": certificates("target", "drafter"),
        "sub_drafter": certificates("sub-drafter"),
        "apply": {},
        "test": certificates("client") | {f"{SECRETS}/ca": "flyserve-router-tls"},
    }


def test_whom_to_trust_is_mounted_without_the_routers_key(manifests: list[Manifest]) -> None:
    (pod,) = (p for p in pod_templates(manifests) if p["metadata"]["labels"]["flyserve.io/role"] == "test")
    (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == "ca")
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
