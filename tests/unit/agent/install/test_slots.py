"""Where packages lie, which one is current, and what is refused when they are opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import StorageError
from agent.install.slots import Slots
from agent.package_files import is_intact
from agent.packages import open_package
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
SPEECH = package("1.0.0", [(variant("best"), b"speech")], name="speech")
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
    slot = slots.of("digits")
    assert slot.current() is None
    slot.switch(PACKAGE.digest)
    slot.switch(OTHER.digest)
    assert slot.current() == OTHER.digest
    assert (tmp_path / "serving/digits").resolve() == tmp_path / "packages" / OTHER.digest
    assert Slots(tmp_path).of("digits").current() == OTHER.digest
    slot.clear()
    slot.clear()
    assert slot.current() is None


def test_a_switch_of_one_model_leaves_the_slot_of_the_other(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE, OTHER, SPEECH)
    digits, speech = slots.of("digits"), slots.of("speech")
    digits.switch(PACKAGE.digest)
    speech.switch(SPEECH.digest)
    assert slots.serving() == {"digits": PACKAGE.digest, "speech": SPEECH.digest}
    digits.switch(OTHER.digest)
    assert slots.serving() == {"digits": OTHER.digest, "speech": SPEECH.digest}
    digits.clear()
    assert Slots(tmp_path).serving() == {"speech": SPEECH.digest}


@pytest.mark.parametrize("name", ["", "..", ".digits.new", "Digits", "a/b", "d" * 64])
def test_what_is_no_name_of_a_model_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a name of a model"):
        Slots(tmp_path).of(name)


def test_other_things_among_the_slots_do_no_harm(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE, OTHER)
    slots.of("digits").switch(PACKAGE.digest)
    serving = tmp_path / "serving"
    (serving / ".speech.new").symlink_to(f"../packages/{OTHER.digest}")  # as a power cut leaves it
    (serving / "Speech \udc80").symlink_to(f"../packages/{OTHER.digest}")
    (serving / ("s" * 100)).symlink_to(f"../packages/{OTHER.digest}")
    (serving / "faces").mkdir()
    (serving / "noise").write_bytes(b"noise")
    (serving / "lost").symlink_to("../packages/" + "e" * 64)
    again = Slots(tmp_path)
    assert again.serving() == {"digits": PACKAGE.digest}
    again.collect(set())
    assert again.whole() == (PACKAGE.digest,)


@pytest.mark.parametrize("model", ["faces", "noise"])
def test_a_slot_is_made_in_place_of_what_lies_there(tmp_path: Path, model: str) -> None:
    slots = staged(tmp_path, PACKAGE)
    (tmp_path / "serving/faces").mkdir()
    (tmp_path / "serving/faces/filler").touch()
    (tmp_path / "serving/noise").write_bytes(b"noise")
    (tmp_path / f"serving/.{model}.new").mkdir()
    slots.of(model).switch(PACKAGE.digest)
    assert slots.serving() == {model: PACKAGE.digest}


@pytest.mark.parametrize(
    "target", ["../../etc", "../packages/" + "e" * 64, "packages/" + "e" * 64, "packages/nothing"]
)
def test_a_current_that_leads_elsewhere_is_none(tmp_path: Path, target: str) -> None:
    slots = staged(tmp_path, PACKAGE)
    (tmp_path / "serving/digits").symlink_to(target)
    assert slots.of("digits").current() is None
    (tmp_path / "current").symlink_to(target)
    assert slots.one_slot() is None


def test_collect_keeps_the_current_one_and_those_named(tmp_path: Path) -> None:
    third = two_variants("3.0.0")
    slots = staged(tmp_path, PACKAGE, OTHER, third)
    slots.of("digits").switch(PACKAGE.digest)
    (tmp_path / "incoming" / ("f" * 64)).mkdir()
    (slots.parts / ("f" * 64)).write_bytes(b"half")
    slots.collect({OTHER.digest, None})
    assert slots.whole() == tuple(sorted((PACKAGE.digest, OTHER.digest)))
    assert list((tmp_path / "incoming").iterdir()) == []
    assert list(slots.parts.iterdir()) == []


def test_collect_keeps_what_serves_any_model(tmp_path: Path) -> None:
    third = two_variants("3.0.0")
    slots = staged(tmp_path, PACKAGE, OTHER, SPEECH, third)
    slots.of("digits").switch(PACKAGE.digest)
    slots.of("speech").switch(SPEECH.digest)
    (tmp_path / "current").symlink_to(f"packages/{OTHER.digest}")  # not adopted yet
    (slots.parts / ("f" * 64)).write_bytes(b"half")
    slots.collect(set(), keep_parts=True)
    assert slots.whole() == tuple(sorted((PACKAGE.digest, OTHER.digest, SPEECH.digest)))
    assert len(list(slots.parts.iterdir())) == 1, "another install needs it"


def test_the_slot_of_an_agent_with_one_model_becomes_that_of_its_model(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE, OTHER)
    assert slots.one_slot() is None
    slots.adopt("digits")
    assert slots.serving() == {}, "there is nothing to adopt"
    (tmp_path / "current").symlink_to(f"packages/{PACKAGE.digest}")
    assert slots.one_slot() == PACKAGE.digest
    for _ in range(2):
        slots.adopt("digits")
        assert slots.serving() == {"digits": PACKAGE.digest}
        assert slots.one_slot() is None
        assert not (tmp_path / "current").is_symlink()


def test_a_power_cut_while_it_is_adopted_leaves_it_where_it_was(tmp_path: Path) -> None:
    slots = staged(tmp_path, PACKAGE, OTHER)
    slots.of("digits").switch(PACKAGE.digest)  # all that was done before the cut
    (tmp_path / "current").symlink_to(f"packages/{PACKAGE.digest}")
    again = Slots(tmp_path)
    again.adopt("digits")
    assert (again.serving(), again.one_slot()) == ({"digits": PACKAGE.digest}, None)


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
