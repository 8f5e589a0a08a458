"""Files that a user names: never read without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.errors import PackageError, ProfileError
from packager.files import copy_file, read_bounded
from wire.files import PUBLIC


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345678")
    assert read_bounded(path, 8, PackageError) == b"12345678"
    with pytest.raises(PackageError, match="f is over 7 bytes"):
        read_bounded(path, 7, PackageError)


def test_a_device_without_end_is_refused() -> None:
    with pytest.raises(ProfileError, match="/dev/zero cannot be read: it is not a file"):
        read_bounded(Path("/dev/zero"), 4096, ProfileError)
    with Path("/dev/zero").open("rb") as zeros:
        path = Path(f"/dev/fd/{zeros.fileno()}")
        with pytest.raises(ProfileError, match=f"{path} is over 4096 bytes"):
            read_bounded(path, 4096, ProfileError)


def test_what_cannot_be_read_is_named_as_the_caller_wants(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="none cannot be read: No such file"):
        read_bounded(tmp_path / "none", 8, PackageError)
    with pytest.raises(PackageError, match=r"^the model cannot be read: Is a directory"):
        read_bounded(tmp_path, 8, PackageError, called="the model")


def test_a_copy_is_a_new_file_that_all_may_read(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(b"12345678" * 200_000)
    (tmp_path / "from").chmod(0o600)
    copy_file(tmp_path / "from", tmp_path / "folder" / "to")
    assert (tmp_path / "folder" / "to").read_bytes() == (tmp_path / "from").read_bytes()
    assert (tmp_path / "folder" / "to").stat().st_mode & 0o777 == PUBLIC
    with pytest.raises(FileExistsError):
        copy_file(tmp_path / "from", tmp_path / "folder" / "to")
