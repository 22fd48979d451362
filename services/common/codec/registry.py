"""The link between the registry and whoever needs to know where the replicas are."""

from fly.messages import Endpoint, Role, Snapshot
from protos.flyserve.v1 import registry_pb2

_ROLES = {
    Role.TARGET: registry_pb2.ROLE_TARGET,
    Role.DRAFTER: registry_pb2.ROLE_DRAFTER,
    Role.SUB_DRAFTER: registry_pb2.ROLE_SUB_DRAFTER,
}
_ROLES_BACK = {wire: domain for domain, wire in _ROLES.items()}


def snapshot_to_wire(snapshot: Snapshot) -> registry_pb2.Snapshot:
    return registry_pb2.Snapshot(
        generation=snapshot.generation, endpoints=[_endpoint_to_wire(e) for e in snapshot.endpoints]
    )


def snapshot_from_wire(wire: registry_pb2.Snapshot) -> Snapshot:
    """Leaves out endpoints of a role that this version does not know."""
    known = (endpoint for endpoint in wire.endpoints if endpoint.role in _ROLES_BACK)
    return Snapshot(wire.generation, tuple(_endpoint_from_wire(endpoint) for endpoint in known))


def _endpoint_to_wire(endpoint: Endpoint) -> registry_pb2.Endpoint:
    return registry_pb2.Endpoint(
        role=_ROLES[endpoint.role],
        address=endpoint.address,
        replica=endpoint.replica,
        generation=endpoint.generation,
        draining=endpoint.draining,
    )


def _endpoint_from_wire(wire: registry_pb2.Endpoint) -> Endpoint:
    return Endpoint(_ROLES_BACK[wire.role], wire.address, wire.replica, wire.generation, wire.draining)
