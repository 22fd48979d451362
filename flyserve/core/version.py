"""The version that every process reports, and which versions of client and server work together."""

VERSION = "0.1.0"
VERSION_HEADER = "x-flyserve-version"
"""Metadata of a call: the version of the client that sends it."""


def version_fault(client: str, server: str = VERSION) -> str | None:
    """Return what to change where a client and a server do not work together; None if they do.

    Before 1.0 a minor version may change a field that the other side would not know, and ignore.
    """
    if _series(client) == _series(server):
        return None
    wanted = ".".join(_series(server))
    return (
        f"the client is flyserve {client[:20]}, the server is version {server}:"
        f" install flyserve {wanted}.* for the client, or serve with its version"
    )


def _series(version: str) -> list[str]:
    major, minor, *_ = [*version.split("."), "", ""]
    return [major, minor] if major == "0" else [major]
