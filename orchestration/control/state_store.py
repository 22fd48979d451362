"""The state store: the part of the controller's state that must survive its crash, as one document."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from pydantic import ConfigDict, TypeAdapter, ValidationError

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Load, Role
from flyserve.core.wording import requirement
from orchestration.control.cluster_state import ClusterState
from orchestration.control.instances import Instance, ReplicaHistory
from orchestration.deployment.file import Deployment, RolloutConfig
from orchestration.deployment.plan import Members

_WRITE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class PersistedState:
    """Everything that cannot be observed from the running instances.

    Attributes:
        deployment: The desired deployment; None before the first one is applied.
        is_ending: The whole deployment is being ended.
        source: The file that the deployment was read from, to show to people.
        replicas_in_file: Replicas of each tier in that file; `deployment` has those of now.
        members: Names of the replicas that make up each tier.
        registry: host:port of the registry; a restarted controller listens at the same port.
        snapshot: Generation of the registry's latest snapshot.
        starts: Number of times that a controller was started.
        instances: Instances that are starting, run or drain.
    """

    # A document of another version is reported, not read in part.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    deployment: Deployment | None = None
    is_ending: bool = False
    source: str = ""
    replicas_in_file: Mapping[Role, int] = field(default_factory=dict)
    members: Members = field(default_factory=dict)
    registry: str = ""
    snapshot: int = 0
    starts: int = 0
    instances: tuple[Instance, ...] = ()
    histories: Mapping[str, ReplicaHistory] = field(default_factory=dict)

    @property
    def rollout(self) -> RolloutConfig:
        return RolloutConfig() if self.deployment is None else self.deployment.rollout

    def observing(self, cluster: ClusterState, snapshot: int) -> "PersistedState":
        """Return this state with the cluster's, without times and loads: no other process can use them."""
        return replace(
            self,
            snapshot=snapshot,
            instances=tuple(
                replace(instance, since=0.0, load=Load(), info=None, waiting_for="")
                for instance in cluster.instances.values()
            ),
            histories={name: replace(history, retry_at=0.0) for name, history in cluster.histories.items()},
        )


_DOCUMENT: TypeAdapter[PersistedState] = TypeAdapter(PersistedState)


class DocumentStorage(Protocol):
    """Durable storage of one document; calls may block."""

    def read(self) -> bytes | None:
        """Return the latest document; None if there is none."""

    def write(self, document: bytes) -> None:
        """Replace the document atomically."""

    def delete(self) -> None:
        """Delete the document."""


class StateStore:
    """Writes the latest state, one write at a time in a thread; for one event loop."""

    def __init__(self, storage: DocumentStorage) -> None:
        self._storage = storage
        self._written: bytes | None = None
        self._write: asyncio.Task[None] | None = None

    async def load(self) -> PersistedState:
        """Return the state that was written last; the initial state if there is none.

        Raises:
            ConfigError: It was written by another version.
        """
        document = await asyncio.to_thread(self._storage.read)
        return PersistedState() if document is None else from_document(document)

    async def save(self, state: PersistedState) -> bool:
        """Write a state unless it is unchanged; return False if the storage does not answer within 2 s.

        A slower write goes on, and the next state waits for it.
        """
        document = to_document(state)
        if self._write is not None and not await self._has_finished(self._write):
            return False
        if document == self._written:
            return True
        self._write = asyncio.create_task(self._put(document), name="write state")
        return await self._has_finished(self._write)

    async def delete(self) -> None:
        """Delete the state."""
        await asyncio.to_thread(self._storage.delete)

    async def _has_finished(self, write: "asyncio.Task[None]") -> bool:
        await asyncio.wait({write}, timeout=_WRITE_TIMEOUT_S)
        if not write.done():
            return False
        self._write = None
        write.result()
        return True

    async def _put(self, document: bytes) -> None:
        await asyncio.to_thread(self._storage.write, document)
        self._written = document


def to_document(state: PersistedState) -> bytes:
    return _DOCUMENT.dump_json(state)


def from_document(document: bytes) -> PersistedState:
    """Parse what `to_document` returned.

    Raises:
        ConfigError: Another version wrote it, with other fields.
    """
    try:
        return _DOCUMENT.validate_json(document)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise ConfigError(
            f"the deployment's state was written by another version ({key}: {requirement(fault)}):"
            " end the deployment with that version, then apply it with this one"
        ) from None
