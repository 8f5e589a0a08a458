"""What a worker loads is what was signed: any change before or beside the load is found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.serve.worker.signed_files import SignedFiles
from wire.errors import IntegrityError
from wire.package.index import FileEntry, entry_for

CONTENT = bytes(range(256)) * 8
MODEL = entry_for("variants/a/model.bin", CONTENT)
LABELS = entry_for("variants/a/labels.txt", b"")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for entry, content in ((MODEL, CONTENT), (LABELS, b"")):
        place = tmp_path / entry.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return tmp_path


def model(package: Path) -> Path:
    return package / MODEL.path


def hashed(package: Path, *entries: FileEntry) -> SignedFiles:
    return SignedFiles(package, entries or (MODEL, LABELS), "digits:1.0")


def test_whole_files_that_nobody_touches_may_be_loaded(package: Path) -> None:
    hashed(package).check_untouched()


def test_of_no_files_nothing_is_compared(tmp_path: Path) -> None:
    SignedFiles(tmp_path, (), "digits:1.0").check_untouched()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, len(CONTENT) - 1), mask=st.integers(1, 255))
def test_no_flipped_bit_is_loaded(package: Path, place: int, mask: int) -> None:
    content = bytearray(CONTENT)
    content[place] ^= mask
    model(package).write_bytes(content)
    with pytest.raises(IntegrityError, match=r"model\.bin of digits:1\.0 differs"):
        hashed(package)


def shortened(file: Path) -> None:
    file.write_bytes(CONTENT[:-1])


def lengthened(file: Path) -> None:
    file.write_bytes(CONTENT + b"x")


def linked(file: Path) -> None:
    other = file.with_name("other")
    file.rename(other)
    file.symlink_to(other)


def piped(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("damage", [shortened, lengthened, Path.unlink, linked, piped])
def test_what_is_no_longer_the_signed_file_is_not_loaded(
    package: Path, damage: Callable[[Path], None]
) -> None:
    damage(model(package))
    with pytest.raises(IntegrityError):
        hashed(package)


def rewritten(file: Path) -> None:
    """Write the same content, and set the time of the last change of content back."""
    before = file.stat()
    file.write_bytes(CONTENT)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(CONTENT)
    other.replace(file)


@pytest.mark.parametrize("change", [rewritten, replaced, shortened, Path.unlink, linked])
def test_a_change_beside_the_load_is_found(package: Path, change: Callable[[Path], None]) -> None:
    os.utime(model(package), ns=(0, 0))
    signed = hashed(package)
    changed_ns = model(package).stat().st_ctime_ns
    # The kernel's clock for files goes in steps of some milliseconds.
    while _now_ns(package) == changed_ns:
        pass
    change(model(package))
    with pytest.raises(IntegrityError):
        signed.check_untouched()


def _now_ns(package: Path) -> int:
    """Return what the kernel writes down now as the time of a change."""
    file = package / "clock"
    file.touch()
    return file.stat().st_ctime_ns
