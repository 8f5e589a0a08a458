"""Files that a user names: never read without end, never half written."""

from __future__ import annotations

import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from packager.errors import PackageError, ProfileError
from packager.files import read_bounded, write_new, write_whole


@contextmanager
def no_room(most_bytes: int = 16) -> Iterator[None]:
    """Let this process write no larger file, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345678")
    assert read_bounded(path, 8, PackageError) == b"12345678"
    with pytest.raises(PackageError, match="f is over 7 bytes"):
        read_bounded(path, 7, PackageError)


def test_a_device_without_end_is_refused() -> None:
    with pytest.raises(ProfileError, match="/dev/zero is over 4096 bytes"):
        read_bounded(Path("/dev/zero"), 4096, ProfileError)


def test_what_cannot_be_read_is_named_as_the_caller_wants(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="none cannot be read: No such file"):
        read_bounded(tmp_path / "none", 8, PackageError)
    with pytest.raises(PackageError, match=r"^the model cannot be read: Is a directory"):
        read_bounded(tmp_path, 8, PackageError, called="the model")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for content in (b"old", b"new"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    with no_room(), pytest.raises(OSError, match="File too large"):
        write_whole(path, bytes(64))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"f": b"new"}


def test_a_new_file_is_private_from_the_beginning_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_new(path, b"secret", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_new(path, b"other")
    assert path.read_bytes() == b"secret"


def test_a_new_file_that_does_not_fit_is_not_there(tmp_path: Path) -> None:
    with no_room(), pytest.raises(OSError, match="File too large"):
        write_new(tmp_path / "f", bytes(64))
    assert not list(tmp_path.iterdir())
