"""Where packages lie, which one is current, and what is refused when they are opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import StorageError
from agent.install.slots import Slots
from agent.packages import is_intact, open_package
from tests.simulators.packages import (
    STRANGER_KEY,
    TRUST,
    SignedPackage,
    package,
    two_variants,
    variant,
)
from wire.errors import IntegrityError, SignatureError
from wire.package.index import ENVELOPE_FILE

PACKAGE = two_variants("1.0.0")
OTHER = two_variants("2.0.0")
MODEL = "variants/best/model.json"


def staged(root: Path, *packages: SignedPackage) -> Slots:
    slots = Slots(root)
    for one in packages:
        one.write_to(slots.directory(one.digest))
        slots.stage(one.digest)
    return slots


def test_a_package_is_incoming_until_it_is_staged(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    assert slots.directory(PACKAGE.digest) == tmp_path / "incoming" / PACKAGE.digest
    PACKAGE.write_to(slots.directory(PACKAGE.digest))
    assert not slots.has(PACKAGE.digest)
    slots.stage(PACKAGE.digest)
    slots.stage(PACKAGE.digest)
    assert slots.has(PACKAGE.digest)
    assert slots.directory(PACKAGE.digest) == tmp_path / "packages" / PACKAGE.digest


def test_current_is_what_was_switched_to(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE, OTHER)
    assert slots.current() is None
    slots.switch(PACKAGE.digest)
    slots.switch(OTHER.digest)
    assert slots.current() == OTHER.digest
    assert (tmp_path / "current").resolve() == tmp_path / "packages" / OTHER.digest
    assert Slots(tmp_path).current() == OTHER.digest
    slots.clear()
    slots.clear()
    assert slots.current() is None


@pytest.mark.parametrize("target", ["../../etc", "packages/" + "e" * 64, "packages/nothing"])
def test_a_current_that_leads_elsewhere_is_none(tmp_path: Path, target: str) -> None:
    slots = staged(tmp_path, PACKAGE)
    (tmp_path / "current").symlink_to(target)
    assert slots.current() is None


def test_collect_keeps_the_current_one_and_those_named(tmp_path: Path) -> None:
    third = two_variants("3.0.0")
    slots = staged(tmp_path, PACKAGE, OTHER, third)
    slots.switch(PACKAGE.digest)
    (tmp_path / "incoming" / ("f" * 64)).mkdir()
    (slots.parts / ("f" * 64)).write_bytes(b"half")
    slots.collect({OTHER.digest, None})
    assert slots.whole() == tuple(sorted((PACKAGE.digest, OTHER.digest)))
    assert list((tmp_path / "incoming").iterdir()) == []
    assert list(slots.parts.iterdir()) == []


def test_a_name_that_is_no_digest_never_reaches_the_storage(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        Slots(tmp_path).directory("../../etc")


def test_storage_that_cannot_be_used_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot make the directory"):
        Slots(tmp_path / "file")


def test_a_whole_package_verifies(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE)
    opened = open_package(slots.directory(PACKAGE.digest), PACKAGE.digest, TRUST)
    opened.verify(opened.manifest.variants)
    assert opened.release == "digits:1.0.0"


def test_a_changed_byte_is_found_in_the_variant_that_has_it(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE)
    (slots.directory(PACKAGE.digest) / MODEL).write_bytes(b"worst")
    opened = open_package(slots.directory(PACKAGE.digest), PACKAGE.digest, TRUST)
    with pytest.raises(
        IntegrityError, match=r"best/model\.json of digits:1\.0\.0 differs from the signed file"
    ):
        opened.verify([opened.manifest.variant("best")])
    opened.verify([opened.manifest.variant("small")])


def test_a_lost_file_a_link_and_a_directory_are_not_intact(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE)
    directory = slots.directory(PACKAGE.digest)
    entry = PACKAGE.index.file(MODEL)
    assert is_intact(directory, entry)
    content = (directory / MODEL).read_bytes()
    (directory / MODEL).unlink()
    assert not is_intact(directory, entry)
    (tmp_path / "same").write_bytes(content)
    (directory / MODEL).symlink_to(tmp_path / "same")
    assert not is_intact(directory, entry)
    (directory / MODEL).unlink()
    (directory / MODEL).mkdir()
    assert not is_intact(directory, entry)


def test_a_link_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE)
    directory = slots.directory(PACKAGE.digest)
    (directory / "variants/best").rename(tmp_path / "elsewhere")
    (directory / "variants/best").symlink_to(tmp_path / "elsewhere")
    assert not is_intact(directory, PACKAGE.index.file(MODEL))


def test_a_package_of_another_digest_is_refused(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE)
    with pytest.raises(IntegrityError, match="the envelope belongs to package"):
        open_package(slots.directory(PACKAGE.digest), OTHER.digest, TRUST)


def test_a_package_that_a_stranger_signed_is_refused(tmp_path: Path) -> None:
    forged = package("1.0.0", [(variant("best"), b"best")], key=STRANGER_KEY)
    slots = staged(tmp_path, forged)
    with pytest.raises(SignatureError):
        open_package(slots.directory(forged.digest), forged.digest, TRUST)


def test_an_envelope_without_end_is_refused(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE)
    with (slots.directory(PACKAGE.digest) / ENVELOPE_FILE).open("r+b") as file:
        file.truncate(64 * 1024**2)
    with pytest.raises(IntegrityError, match="longer than"):
        open_package(slots.directory(PACKAGE.digest), PACKAGE.digest, TRUST)


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE)
    path = slots.directory(PACKAGE.digest) / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"0.99", b"0.11"))
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        open_package(slots.directory(PACKAGE.digest), PACKAGE.digest, TRUST)
