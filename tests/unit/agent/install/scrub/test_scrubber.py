"""Stored packages are read again: what is damaged is found, nothing else is, at a bounded rate."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.errors import StorageError
from agent.install.scrub.course import Course
from agent.install.scrub.scrubber import FILE, LEAST_BYTES, MOST_S, SAVE_S, Scrubber
from agent.install.scrub.settings import ScrubSettings
from agent.install.slots import Slots
from agent.packages import Damage, Package, open_package
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from tests.simulators.packages import PROFILE, TRUST, SignedPackage, package, variant
from wire.durations import DAY_S
from wire.package.index import ENVELOPE_FILE
from wire.package.manifest import MANIFEST_FILE
from wire.telemetry import Event

CALL_S = 5.0
SETTINGS = ScrubSettings(every_days=7.0, bytes_per_s=64 * 1024)
BIG = b"{}" + b" " * 1_000_000
ONE = package("1.0", [(variant("best"), BIG), (variant("small"), b'{"seed": 1}')])
TWO = package("2.0", [(variant("best"), b'{"seed": 2}')])
BEST, SMALL = "variants/best/model.json", "variants/small/model.json"


class Rig:
    """Two stored packages and what reads them; the test calls it as idle threads do."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.slots = Slots(root)
        for each in (ONE, TWO):
            self.store(each)
        self.may_read = True
        self.unreadable = ""
        self.settings = SETTINGS
        self.start()

    def store(self, made: SignedPackage) -> None:
        made.write_to(self.slots.directory(made.digest))
        self.slots.stage(made.digest)

    def start(self) -> None:
        """Begin as after a start of the agent."""
        self.recorder = Recorder(self.clock)
        self.damage = Damage(self.recorder)
        self.scrubber = Scrubber(
            self.settings,
            PROFILE,
            self.slots,
            opened=self._opened,
            damage=self.damage,
            may_read=lambda: self.may_read,
            directory=self.root,
            recorder=self.recorder,
            clock=self.clock,
        )

    def _opened(self, digest: str) -> Package:
        if digest == self.unreadable:
            raise StorageError("cannot read package.dsse.json: input/output error")
        return open_package(self.slots.directory(digest), digest, TRUST)

    def call(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(CALL_S)
            self.scrubber.work()

    def one_pass(self) -> Course:
        """Call until a pass is over."""
        self.call()
        for _ in range(1000):
            if self.scrubber.course.is_over:
                return self.scrubber.course
            self.call()
        raise AssertionError("the pass does not end")

    def file(self, made: SignedPackage, path: str) -> Path:
        return self.slots.directory(made.digest) / path

    def events(self, kind: str) -> list[Event]:
        _, events = self.recorder.drain()
        return [event for event in events if event.kind == kind]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def flip(path: Path) -> None:
    """Change one byte as storage does: no time of the file moves, as far as a test can."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)[0]
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 4]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_packages_that_are_whole_are_read_once_in_a_pass_and_nothing_is_found(rig: Rig) -> None:
    course = rig.one_pass()
    files = [file for made in (ONE, TWO) for file in made.index.files]
    assert (course.files, course.damaged) == (len(files), 0)
    assert course.size_bytes == sum(file.size_bytes for file in files)
    (told,) = rig.events("scrub")
    assert told.reason == "all files of stored packages were compared: none is damaged"
    assert rig.damage.of(ONE.digest) is rig.damage.of(TWO.digest) is None


def removed(path: Path) -> None:
    path.unlink()


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def linked(path: Path) -> None:
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)


@pytest.mark.parametrize("harm", [flip, removed, shortened, linked])
@pytest.mark.parametrize(
    ("made", "path", "variants"),
    [
        (ONE, BEST, {"best"}),
        (ONE, SMALL, {"small"}),
        (TWO, BEST, {"best"}),
        (ONE, MANIFEST_FILE, set()),
        (TWO, ENVELOPE_FILE, set()),
    ],
)
def test_every_damage_is_found_and_told_once(
    rig: Rig, made: SignedPackage, path: str, variants: set[str], harm: Callable[[Path], None]
) -> None:
    harm(rig.file(made, path))
    assert rig.one_pass().damaged == 1
    assert rig.damage.of(made.digest)
    assert rig.damage.variants(made.digest) == variants
    other = TWO if made is ONE else ONE
    assert rig.damage.of(other.digest) is None
    (event,) = rig.events("damage")
    assert event.data["found"] == "scrub"
    rig.clock.advance(7 * DAY_S)
    assert rig.one_pass().damaged == 1
    assert rig.events("damage") == [], "nobody has mended it yet, and it is known"


def test_what_was_mended_before_the_second_look_is_not_told(rig: Rig) -> None:
    content = rig.file(ONE, SMALL).read_bytes()
    flip(rig.file(ONE, SMALL))
    while rig.scrubber.course.path != BEST or rig.scrubber.course.digest != ONE.digest:
        rig.call()  # at last it has seen the damage once, or not yet
    rig.file(ONE, SMALL).write_bytes(content)
    assert rig.one_pass().damaged == 0
    assert rig.damage.of(ONE.digest) is None


def test_a_package_that_is_removed_meanwhile_is_no_damage(rig: Rig) -> None:
    first = min(ONE, TWO, key=lambda made: made.digest)
    rig.call()
    shutil.rmtree(rig.slots.directory(first.digest))
    assert rig.one_pass().damaged == 0
    assert rig.events("damage") == []


def test_a_file_that_is_replaced_while_it_is_read_is_read_anew(rig: Rig) -> None:
    rig.call()
    model = rig.file(ONE, BEST)
    copy = model.with_name("copy")
    copy.write_bytes(BIG)
    for _ in range(4):
        rig.call()
        copy.write_bytes(BIG)
        copy.replace(model)
    assert rig.one_pass().damaged == 0


def test_no_call_reads_more_than_its_time_allows(rig: Rig) -> None:
    rig.clock.advance(30 * DAY_S)
    rig.scrubber.work()
    size_bytes = sum(made.index.size_bytes for made in (ONE, TWO))
    assert rig.scrubber.course.size_bytes <= SETTINGS.bytes_per_s * MOST_S < size_bytes
    began_s = rig.clock.monotonic_s()
    rig.one_pass()
    calls = (rig.clock.monotonic_s() - began_s) / CALL_S
    assert calls * CALL_S + MOST_S >= size_bytes / SETTINGS.bytes_per_s
    files = len(ONE.index.files) + len(TWO.index.files)
    counted_bytes = size_bytes + files * LEAST_BYTES
    assert (calls - 1) * CALL_S <= counted_bytes / SETTINGS.bytes_per_s + MOST_S


def test_nothing_is_read_while_the_device_has_other_things_to_do(rig: Rig) -> None:
    rig.may_read = False
    rig.call(100)
    assert rig.scrubber.course == Course()
    rig.may_read = True
    rig.call()
    assert rig.scrubber.course != Course()


def test_a_pass_begins_some_days_after_the_one_before_began(rig: Rig) -> None:
    began_s = rig.one_pass().began_s
    rig.call(10)
    assert rig.scrubber.course.began_s == began_s
    rig.clock.advance(7 * DAY_S)
    assert rig.one_pass().began_s >= began_s + 7 * DAY_S


def test_it_can_be_turned_off(rig: Rig) -> None:
    rig.settings = ScrubSettings(every_days=0)
    rig.start()
    rig.call(10)
    assert rig.scrubber.course == Course()


def test_after_a_restart_it_goes_on_where_it_was(rig: Rig) -> None:
    flip(rig.file(min(ONE, TWO, key=lambda made: made.digest), BEST))
    while rig.scrubber.course.files < 2:
        rig.call()
    before = rig.scrubber.course
    rig.scrubber.close()
    rig.start()
    assert rig.scrubber.course == before
    whole = rig.one_pass()
    assert whole.files == len(ONE.index.files) + len(TWO.index.files)
    assert whole.began_s == before.began_s


def test_the_storage_is_written_seldom(rig: Rig) -> None:
    kept = rig.root / FILE
    written: set[int] = set()
    began_s = rig.clock.monotonic_s()
    rig.settings = ScrubSettings(bytes_per_s=16 * 1024)
    rig.start()
    for _ in range(100):
        rig.call()
        if kept.exists():
            written.add(kept.stat().st_ino)
    assert len(written) <= 1 + (rig.clock.monotonic_s() - began_s) / SAVE_S
    rig.scrubber.close()
    saved_ns = kept.stat().st_mtime_ns
    rig.scrubber.close()
    assert kept.stat().st_mtime_ns == saved_ns


@pytest.mark.parametrize("content", [b"", b"\0", b"{}", None])
def test_without_a_record_a_pass_begins_anew(rig: Rig, content: bytes | None) -> None:
    rig.one_pass()
    kept = rig.root / FILE
    kept.unlink() if content is None else kept.write_bytes(content)
    rig.start()
    assert rig.scrubber.course == Course()
    assert rig.one_pass().damaged == 0


def test_a_storage_that_cannot_be_written_stops_nothing(rig: Rig) -> None:
    (rig.root / FILE).mkdir()
    (rig.root / f"{FILE}.corrupt").mkdir()
    rig.start()
    assert rig.one_pass().files == len(ONE.index.files) + len(TWO.index.files)


def test_a_file_that_cannot_be_read_counts_as_damaged(rig: Rig) -> None:
    rig.unreadable = TWO.digest
    assert rig.one_pass().damaged == 1
    assert rig.damage.of(TWO.digest) == "cannot read package.dsse.json: input/output error"


def test_variants_that_are_for_other_devices_are_not_missed(rig: Rig, tmp_path: Path) -> None:
    info = msgspec.structs.replace(variant("other").info, runtime="openvino")
    other: Any = msgspec.structs.replace(variant("other"), info=info)
    made = package("3.0", [(variant("best"), b"{}"), (other, b"{}")])
    rig.store(made)
    shutil.rmtree(rig.file(made, "variants/other"))
    assert rig.one_pass().damaged == 0
