"""API keys: shown once, stored as hashes, recognized, reloaded, and never printed."""

import errno
import fcntl
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import ConfigError, Unauthenticated
from router.security import keys as keys_module
from router.security.keys import Caller, Keys, hash_of, issue_key


def age(file: Path) -> None:
    """Change a file's modification time, even if the file system's clock is coarse."""
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1_000_000))


def test_a_token_is_recognized_and_only_its_hash_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    alice = issue_key(file, "alice", {"max_concurrent": 2, "requests_per_minute": None})
    bob = issue_key(file, "bob", {})
    keys = Keys(file)
    assert keys.caller(f"Bearer {alice}") == Caller("alice", 2, None)
    assert keys.caller(f"bearer {bob}") == Caller("bob")
    assert alice not in file.read_text() and bob not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert alice.startswith("flyserve-") and len(alice) > 50 and alice != bob


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {}x", "Bearer x{}", "Bearer " + "x" * 100_000],
)
def test_anything_else_is_rejected(tmp_path: Path, header: str) -> None:
    token = issue_key(tmp_path / "keys.yaml", "alice", {})
    with pytest.raises(Unauthenticated) as rejected:
        Keys(tmp_path / "keys.yaml").caller(header.format(token))
    assert token not in str(rejected.value)


def test_changes_of_the_file_apply_at_once_and_an_invalid_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    alice = issue_key(file, "alice", {})
    keys = Keys(file)
    bob = issue_key(file, "bob", {})
    assert keys.caller(f"Bearer {bob}").name == "bob"
    file.write_text("keys: [")
    age(file)
    assert keys.caller(f"Bearer {alice}").name == "alice"
    file.write_text(yaml.safe_dump({"keys": {}}))
    age(file)
    with pytest.raises(Unauthenticated):
        keys.caller(f"Bearer {alice}")


def test_a_file_that_becomes_readable_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.yaml"
    issue_key(file, "alice", {})
    keys = Keys(file)
    bob = f"Bearer {issue_key(file, 'bob', {})}"
    read = Path.read_text

    def read_as_another_user(path: Path, encoding: str) -> str:
        if not path.stat().st_mode & stat.S_IROTH:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path, encoding)

    monkeypatch.setattr(Path, "read_text", read_as_another_user)  # these tests may run as root
    with pytest.raises(Unauthenticated):
        keys.caller(bob)
    before = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:  # the file system's clock may be coarse
        file.chmod(0o644)
    assert keys.caller(bob).name == "bob"


def test_a_key_that_is_listed_twice_is_rejected_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    alice = issue_key(file, "alice", {})
    keys = Keys(file)
    entries = [f"  alice: {{sha256: {hash_of(token)}}}\n" for token in (alice, "another")]
    file.write_text("".join(["keys:\n", *entries]))
    age(file)
    assert keys.caller(f"Bearer {alice}").name == "alice"
    with pytest.raises(ConfigError, match=r"keys\.yaml: .*key 'alice' is in line 2 and again in line 3"):
        Keys(file)


@pytest.mark.parametrize(
    "content",
    [
        "keys: {alice: {sha256: hunter2-secret}}",
        "keys: {alice: hunter2-secret}",
        "keys: hunter2-secret",
        "hunter2-secret",
        "keys: {alice: {token: hunter2-secret}}",
        "keys: {alice: {sha256: 'hunter2-secret}}",
    ],
)
def test_a_token_in_place_of_its_hash_is_rejected_and_not_printed(tmp_path: Path, content: str) -> None:
    (file := tmp_path / "keys.yaml").write_text(content)
    with pytest.raises(ConfigError) as rejected:
        Keys(file)
    assert "hunter2" not in str(rejected.value) and "keys.yaml" in str(rejected.value)


def test_names_are_taken_once_and_tokens_belong_to_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    issue_key(file, "alice", {})
    before = file.read_text()
    with pytest.raises(ConfigError, match="already exists"):
        issue_key(file, "alice", {})
    with pytest.raises(ConfigError, match=r"keys\."):
        issue_key(file, "no spaces", {})
    assert file.read_text() == before
    entry = yaml.safe_load(before)["keys"]["alice"]
    file.write_text(yaml.safe_dump({"keys": {"alice": entry, "bob": entry}}))
    with pytest.raises(ConfigError, match=r"keys\.bob: has the token of alice"):
        Keys(file)


def test_there_is_no_key_whose_token_nobody_has_seen(tmp_path: Path) -> None:
    def full(token: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        issue_key(tmp_path / "keys.yaml", "alice", {}, full)
    assert not list(tmp_path.iterdir())
    shown = list[str]()
    assert [issue_key(tmp_path / "keys.yaml", "alice", {}, shown.append)] == shown


def test_a_rejected_name_leaves_no_new_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys\."):
        issue_key(tmp_path / "folder" / "keys.yaml", "no spaces", {})
    assert not list(tmp_path.iterdir())


def test_a_lock_that_another_process_holds_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.yaml"
    monkeypatch.setattr(keys_module, "_LOCK_S", 0.0)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"keys\.yaml cannot be written: another process holds a lock"):
            issue_key(file, "alice", {})
    finally:
        os.close(folder)
    assert not file.exists()
    token = issue_key(file, "alice", {})
    assert Keys(file).caller(f"Bearer {token}").name == "alice"


def test_a_key_is_added_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(folder: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    token = issue_key(tmp_path / "keys.yaml", "alice", {})
    assert Keys(tmp_path / "keys.yaml").caller(f"Bearer {token}").name == "alice"


def test_a_key_is_added_in_a_folder_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def open_as_another_user(path: str | Path, *arguments: int) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", open_as_another_user)  # these tests may run as root
    token = issue_key(tmp_path / "keys.yaml", "alice", {})
    assert Keys(tmp_path / "keys.yaml").caller(f"Bearer {token}").name == "alice"


def test_keys_that_are_made_at_the_same_time_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "_LOCK_S", 600.0)
    file = tmp_path / "folder" / "keys.yaml"
    names = [f"key-{number}" for number in range(32)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        tokens = list(pool.map(lambda name: issue_key(file, name, {}), names))
    keys = Keys(file)
    assert [keys.caller(f"Bearer {token}").name for token in tokens] == names
    assert [path.name for path in file.parent.iterdir()] == ["keys.yaml"]


@given(st.text(), st.text(), st.sampled_from(["alice", "bob", "a", "ab"]), st.sampled_from(["alice", "bob"]))
def test_no_salt_of_one_key_equals_one_of_another(salt: str, other_salt: str, name: str, other: str) -> None:
    same = Caller(name).salted(salt) == Caller(other).salted(other_salt)
    assert same == ((name, salt) == (other, other_salt))
    assert Caller(name).salted(salt) not in (salt, other_salt)
    assert Caller().salted(salt) == salt
