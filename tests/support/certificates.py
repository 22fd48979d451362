"""Certificates of a test authority, one per role, in files as a deployment has them."""

from datetime import UTC, datetime
from pathlib import Path

import grpc
import trustme

from services.common.security.identity import PeerTls

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


class Authority:
    """A certificate authority that writes its files to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(str(folder / "ca.pem"))

    def issue(self, *names: str, file: str = "", expired: bool = False) -> dict[str, str]:
        """Sign a certificate for these names; replace an earlier file of the same name."""
        issued = self._ca.issue_cert(*names, not_after=LONG_AGO if expired else None)
        stem = file or names[0].partition(".")[0]
        certificate, key = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        issued.private_key_pem.write_to_path(str(key))
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        return {"certificate": str(certificate), "key": str(key), "ca": str(self.folder / "ca.pem")}

    def security(self, *names: str, **more: object) -> dict[str, object]:
        """Return the security section of a configuration."""
        return {"tls": self.issue(*names), **more}

    def peer(self, files: dict[str, str], name: str) -> PeerTls:
        """Return the credentials of these files for calls to a server with `name`."""
        certificate, key, ca = (Path(files[field]).read_bytes() for field in ("certificate", "key", "ca"))
        return PeerTls(grpc.ssl_channel_credentials(ca, key, certificate), name)

    def anonymous(self, name: str) -> PeerTls:
        """Return credentials without a certificate for calls to a server with `name`."""
        return PeerTls(grpc.ssl_channel_credentials((self.folder / "ca.pem").read_bytes()), name)
