"""What a controller must still know after a crash: one document, kept where the crash does not reach."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from fly.errors import ConfigError
from fly.messages import Load
from orchestration.control.instances import Instance, Slot
from orchestration.deployment.file import Deployment
from orchestration.deployment.plan import Members, first_members


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that is not to be seen from the running instances.

    Attributes:
        deployment: What is desired; None where nothing is.
        is_ending: It is being ended as a whole.
        source: The file that it was read from, for people.
        members: Which replicas make up each tier.
        registry: host:port of the registry; its port is taken again.
        snapshot: Generation of the registry's latest snapshot.
        starts: Times that a controller was started.
        instances: Those that are being started, run or drain.
        slots: By replica.
    """

    deployment: Deployment | None = None
    is_ending: bool = False
    source: str = ""
    members: Members = field(default_factory=dict)
    registry: str = ""
    snapshot: int = 0
    starts: int = 0
    instances: tuple[Instance, ...] = ()
    slots: Mapping[str, Slot] = field(default_factory=dict)


_FORM: TypeAdapter[Record] = TypeAdapter(Record)


class Store(Protocol):
    """Keeps one document."""

    def read(self) -> bytes | None:
        """The latest one; None where there is none."""

    def write(self, document: bytes) -> None:
        """Replaces it, whole or not at all."""

    def delete(self) -> None:
        """Leaves none."""


def lasting(
    record: Record, snapshot: int, instances: Iterable[Instance], slots: Mapping[str, Slot]
) -> Record:
    """The record with what of these means something to another process: neither times nor loads."""
    return replace(
        record,
        snapshot=snapshot,
        instances=tuple(replace(i, since=0.0, load=Load(), waits_for="") for i in instances),
        slots={name: replace(slot, retry_at=0.0) for name, slot in slots.items()},
    )


def to_document(record: Record) -> bytes:
    return _FORM.dump_json(record)


def from_document(document: bytes) -> Record:
    """What `to_document` has written.

    Raises:
        ConfigError: Another version has written it, which knew other fields.
    """
    try:
        record = _FORM.validate_json(document)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise ConfigError(
            f"the deployment's state was written by another version ({key}: {fault['msg']}):"
            " end the deployment with that version, then apply it with this one"
        ) from None
    if record.deployment is None or record.members:
        return record
    # NOTE: written by a version whose replicas were always numbered from 0.
    return replace(record, members=first_members(record.deployment))


class RayStore:
    """Ray's own key-value store, in the GCS, where Ray itself keeps its named actors.

    So the document lives exactly as long as what it tells of: longer than the controller, and with a
    fault-tolerant GCS longer than the head. What Ray's libraries keep their own state in. Actors' constructor
    arguments would not do: they stay what they were at first.
    """

    _NAMESPACE = b"flyserve"

    def __init__(self, name: str) -> None:
        self._key = f"deployment/{name}".encode()

    def read(self) -> bytes | None:
        from ray.experimental.internal_kv import _internal_kv_get

        document: bytes | None = _internal_kv_get(self._key, namespace=self._NAMESPACE)
        return document

    def write(self, document: bytes) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(self._key, document, overwrite=True, namespace=self._NAMESPACE)

    def delete(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(self._key, namespace=self._NAMESPACE)
