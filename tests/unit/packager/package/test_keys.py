"""Signing keys as files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from packager.errors import KeyFileError
from packager.package.keys import generate_key, load_key


def test_a_new_key_is_private_and_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "release.key"
    key = generate_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(path).keyid == key.keyid


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "release.key"
    generate_key(path)
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match="exists already"):
        generate_key(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "release.key"
    generate_key(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"{mode:04o}"):
        load_key(path)


@pytest.mark.parametrize("content", [b"", b"k" * 31, b"k" * 33])
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "release.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError) as caught:
        load_key(path)
    assert "kkk" not in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read"):
        load_key(tmp_path / "none")
