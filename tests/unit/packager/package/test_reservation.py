"""One build at a time writes a package to one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.errors import PackageError
from packager.package.reservation import reserved


def test_a_second_build_into_the_same_directory_is_refused_while_the_first_works(
    tmp_path: Path,
) -> None:
    with reserved(tmp_path / "p", force=False):
        with pytest.raises(PackageError, match=r"another build is writing .*/p; name another"):
            reserved(tmp_path / "p", force=True).__enter__()
        with reserved(tmp_path / "q", force=False):
            pass
    with reserved(tmp_path / "p", force=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_build_left_keeps_nobody_off(tmp_path: Path) -> None:
    (tmp_path / ".p.lock").touch()
    with reserved(tmp_path / "p", force=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_there_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "manifest.json").touch()
    with pytest.raises(PackageError, match="exists already"):
        reserved(tmp_path / "p", force=False).__enter__()
    with reserved(tmp_path / "p", force=True):
        pass
