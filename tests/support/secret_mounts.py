"""Secrets as Kubernetes mounts them: files behind one link, which moves when the Secret changes."""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.certificates import Authority

Files = Mapping[str, bytes]


@dataclass(slots=True)
class _Mount:
    """A volume of a Secret in a container.

    Attributes:
        folder: Where the container sees it.
        entries: Of the Secret that are shown there; None shows all.
        revision: Of what is shown.
    """

    folder: Path
    entries: frozenset[str] | None
    revision: int = field(default=0)

    def show(self, files: Files) -> None:
        """Change all files at the same moment, as the kubelet does."""
        shown = {
            name: content for name, content in files.items() if self.entries is None or name in self.entries
        }
        before, self.revision = self.revision, self.revision + 1
        (new := self.folder / f"..revision_{self.revision}").mkdir(parents=True)
        for name, content in shown.items():
            (new / name).write_bytes(content)
        (link := self.folder / "..data_tmp").symlink_to(new.name)
        os.replace(link, self.folder / "..data")
        for name in shown:
            if not (entry := self.folder / name).is_symlink():
                entry.symlink_to(f"..data/{name}")
        shutil.rmtree(self.folder / f"..revision_{before}", ignore_errors=True)


class MountedSecrets:
    """The Secrets of rendered pods, mounted in one folder of this machine instead of each pod's root."""

    def __init__(self, pods: Iterable[Any], root: Path) -> None:
        """Mount nothing yet; `pods` are pod templates."""
        self._mounts: dict[str, dict[Path, _Mount]] = {}
        for pod in pods:
            volumes = {volume["name"]: volume.get("secret") for volume in pod["spec"].get("volumes", [])}
            for mount in pod["spec"]["containers"][0].get("volumeMounts", []):
                if (secret := volumes[mount["name"]]) is not None:
                    assert "subPath" not in mount, "a single file does not follow its Secret"
                    folder = root / mount["mountPath"].removeprefix("/")
                    entries = (
                        frozenset(item["path"] for item in secret["items"]) if "items" in secret else None
                    )
                    found = self._mounts.setdefault(secret["secretName"], {})
                    found[folder] = _Mount(folder, entries)

    @property
    def names(self) -> set[str]:
        """Return the names of the Secrets."""
        return set(self._mounts)

    def show(self, secret: str, files: Files) -> None:
        """Set the content of a Secret wherever it is mounted."""
        for mount in self._mounts[secret].values():
            mount.show(files)


def certificate_files(authority: Authority, *names: str) -> dict[str, bytes]:
    """Return a Secret with a certificate for these names, in cert-manager's format."""
    issued = authority.issue(*names)
    entries = {"tls.crt": "certificate", "tls.key": "key", "ca.crt": "ca"}
    return {entry: Path(issued[kind]).read_bytes() for entry, kind in entries.items()}
