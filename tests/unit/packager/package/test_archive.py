"""Packages written into one file and back: equal bytes, what fits, nothing of a failed copy."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from packager.errors import PackageError
from packager.package.archive import export, unpack
from packager.package.content import directory_content
from packager.package.directory import open_package
from tests.simulators.archives import file_of
from tests.simulators.packages import (
    PROFILE,
    STRANGER_KEY,
    TRUST,
    desired,
    package,
    two_variants,
    variant,
)
from wire.errors import FleetError, IntegrityError, SignatureError, WireFormatError
from wire.package.archive import open_archive
from wire.package.index import ENVELOPE_FILE, FileEntry

MADE = two_variants("1.0.0")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a signed package."""
    MADE.write_to(tmp_path / "made")
    return tmp_path / "made"


def test_equal_packages_give_equal_files(directory: Path, tmp_path: Path) -> None:
    first = export(directory_content(directory), tmp_path / "first.tar")
    os.utime(directory / ENVELOPE_FILE, (1, 1))
    again = export(directory_content(directory), tmp_path / "again.tar")
    content = (tmp_path / "first.tar").read_bytes()
    assert content == (tmp_path / "again.tar").read_bytes() == file_of(MADE)
    assert first == again
    assert (first.release, first.variants) == ("digits:1.0.0", ("best", "small"))
    assert (first.size_bytes, first.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.tar", "first.tar", "made"]


def test_a_desired_state_goes_with_it(directory: Path, tmp_path: Path) -> None:
    _, envelope = desired(3, MADE)
    export(directory_content(directory), tmp_path / "made.tar", desired=envelope)
    assert (tmp_path / "made.tar").read_bytes() == file_of(MADE, desired=envelope)


def test_only_what_fits_the_profiles(directory: Path, tmp_path: Path) -> None:
    little = msgspec.structs.replace(PROFILE, name="little", memory_bytes=2000)
    told = export(directory_content(directory), tmp_path / "little.tar", profiles=[little])
    assert told.variants == ("small",)
    content = (tmp_path / "little.tar").read_bytes()
    archive = open_archive(lambda at, length: content[at : at + length], len(content), TRUST)
    assert len(archive.blobs) == len(MADE.index.files) - 1
    both = export(directory_content(directory), tmp_path / "both.tar", profiles=[little, PROFILE])
    assert both.variants == ("best", "small")
    with pytest.raises(PackageError, match="holds only a part of the package"):
        unpack(tmp_path / "little.tar", tmp_path / "back", TRUST)
    tiny = msgspec.structs.replace(PROFILE, name="tiny", memory_bytes=1)
    with pytest.raises(PackageError, match=r"no variant of digits:1\.0\.0 fits the profile tiny"):
        export(directory_content(directory), tmp_path / "tiny.tar", profiles=[tiny])
    assert not (tmp_path / "tiny.tar").exists()


def test_there_and_back(directory: Path, tmp_path: Path) -> None:
    export(directory_content(directory), tmp_path / "made.tar")
    index = unpack(tmp_path / "made.tar", tmp_path / "back", TRUST)
    assert index == MADE.index
    assert open_package(tmp_path / "back", trust=TRUST)[1] == MADE.index
    assert (tmp_path / "back" / ENVELOPE_FILE).read_bytes() == MADE.envelope
    with pytest.raises(PackageError, match="exists already"):
        unpack(tmp_path / "made.tar", tmp_path / "back", TRUST)
    unpack(tmp_path / "made.tar", tmp_path / "back", TRUST, force=True)


def test_nothing_that_exists_is_overwritten(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("there", "link"):
        with pytest.raises(PackageError, match="exists already"):
            export(directory_content(directory), tmp_path / name)
    assert (tmp_path / "there").read_bytes() == b"mine"
    assert not (tmp_path / "nowhere").exists()


def test_what_a_killed_attempt_left_is_replaced(directory: Path, tmp_path: Path) -> None:
    content, stick = directory_content(directory), tmp_path / "stick"
    stick.mkdir()
    during: set[str] = set()

    def parts(entry: FileEntry) -> Iterator[bytes]:
        during.update(path.name for path in stick.iterdir())
        return content.parts(entry)

    told = export(content._replace(parts=parts), stick / "made.tar")
    assert len(during) == 1, "one name for every attempt"
    (stick / "made.tar").unlink()
    (stick / during.pop()).write_bytes(bytes(2 * told.size_bytes))
    assert export(content, stick / "made.tar") == told
    assert [path.name for path in stick.iterdir()] == ["made.tar"]
    assert (stick / "made.tar").stat().st_size == told.size_bytes


def test_a_file_that_changes_while_it_is_copied_leaves_nothing(
    directory: Path, tmp_path: Path
) -> None:
    content = directory_content(directory)
    (directory / "variants/small/model.json").write_bytes(b"other")
    with pytest.raises(PackageError, match=r"small/model\.json differs from the signed file"):
        export(content, tmp_path / "made.tar")
    shutil.rmtree(directory / "variants")
    with pytest.raises(PackageError, match="No such file"):
        export(content, tmp_path / "made.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_package_that_is_not_signed_or_damaged_is_not_exported(
    directory: Path, tmp_path: Path
) -> None:
    (directory / "variants/small/model.json").write_bytes(b"other")
    with pytest.raises(IntegrityError):
        directory_content(directory)
    (directory / ENVELOPE_FILE).unlink()
    with pytest.raises(PackageError, match="is not signed"):
        directory_content(directory)


def test_what_is_wrong_with_a_file_leaves_nothing(tmp_path: Path) -> None:
    content = file_of(MADE)
    forged = file_of(package("1.0.0", [(variant("best"), b"evil")], key=STRANGER_KEY))
    flipped = content[:-1600] + bytes([content[-1600] ^ 1]) + content[-1599:]
    os.mkfifo(tmp_path / "pipe")
    for bad, kind in (
        (forged, SignatureError),
        (content[:-1500], WireFormatError),
        (b"", WireFormatError),
        (flipped, FleetError),
    ):
        (tmp_path / "file").write_bytes(bad)
        with pytest.raises(kind):
            unpack(tmp_path / "file", tmp_path / "back", TRUST)
    for name in ("pipe", "none", "."):
        with pytest.raises(PackageError, match="cannot be read"):
            unpack(tmp_path / name, tmp_path / "back", TRUST)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]
