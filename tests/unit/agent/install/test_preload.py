"""Packages that an operator hands over: stored with the same checks, used without a transfer."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agent.errors import ControlError, InterjectedError, NoVariantError, StorageFullError
from agent.install.preflight import check_storage
from agent.install.states import State
from agent.install.thread import Installs
from tests.simulators.archives import Held, file_of, joined, members_of
from tests.simulators.device import PowerCut, SimulatedDevice, wanted
from tests.simulators.packages import (
    PROFILE,
    STRANGER_KEY,
    SignedPackage,
    desired,
    package,
    variant,
)
from tests.simulators.patience import finished, until
from wire.delivery import Chunk
from wire.errors import FleetError, IntegrityError, SignatureError
from wire.package.index import ENVELOPE_FILE
from wire.package.manifest import MANIFEST_FILE


def made(version: str) -> SignedPackage:
    """Make a package whose models have several chunks."""
    return package(
        version,
        [
            (variant("best", accuracy=0.99), f"best {version}".encode() * 400),
            (variant("small", accuracy=0.9), f"small {version}".encode() * 200),
        ],
    )


OLD, NEW, NEWER = made("1.0.0"), made("2.0.0"), made("3.0.0")


@pytest.fixture
def device(tmp_path: Path) -> SimulatedDevice:
    """Return a device on which the old package serves."""
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, OLD)
    device.server.sent.clear()
    device.server.blobs.clear()
    return device


def order(device: SimulatedDevice, revision: int, release: SignedPackage) -> None:
    """Say what to run; the controller has no chunk of it."""
    device.accept(revision, release)
    device.machine.run()


def on_disk(device: SimulatedDevice) -> dict[str, bytes | str]:
    """Return all that is below the state directory."""
    return {
        str(path.relative_to(device.root)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(device.root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_what_was_handed_over_is_installed_without_a_transfer(device: SimulatedDevice) -> None:
    told = device.hand_over(Held(file_of(NEW)))
    assert (told.release, told.digest, told.had_bytes) == ("digits:2.0.0", NEW.digest, 0)
    assert told.stored_bytes == len(NEW.envelope) + sum(map(len, NEW.files.values()))
    assert told.variants == ("best", "small")
    assert device.adaptation.active() == (OLD.digest, "best"), "nobody has ordered it"
    assert device.slots.whole() == (OLD.digest,)
    order(device, 2, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.adaptation.active() == (NEW.digest, "best")
    assert device.server.sent == []
    last = device.heard.outcomes[-1]
    assert last.bytes_by_source == {"file": last.total_bytes}
    assert device.slots.preloaded() is None, "it is a package like others now"


def test_a_second_time_nothing_is_read_or_written(device: SimulatedDevice) -> None:
    device.hand_over(Held(file_of(NEW)))
    before, opened, again = on_disk(device), Held(file_of(NEW)), Held(file_of(NEW))
    device.preload.open(opened)
    told = device.hand_over(again)
    assert told.stored_bytes == 0
    assert on_disk(device) == before
    assert again.reads == opened.reads


def test_it_outlives_other_installs_and_restarts(device: SimulatedDevice) -> None:
    device.hand_over(Held(file_of(NEW)))
    device.install(2, NEWER)
    device.reboot()
    device.server.sent.clear()
    order(device, 3, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.server.sent == []


def test_another_one_takes_its_place(device: SimulatedDevice) -> None:
    device.hand_over(Held(file_of(NEW)))
    device.hand_over(Held(file_of(NEWER)))
    assert device.slots.preloaded() == NEWER.digest
    assert [p.name for p in (device.root / "incoming").iterdir()] == [NEWER.digest]


def test_it_goes_when_its_storage_is_needed(device: SimulatedDevice) -> None:
    device.hand_over(Held(file_of(NEW)))
    with pytest.raises(StorageFullError):
        check_storage(
            device.slots,
            needed_bytes=device.slots.free_bytes() + 1,
            allowed_bytes=2**60,
            keep={OLD.digest},
        )
    assert device.slots.preloaded() is None
    assert list((device.root / "incoming").iterdir()) == []
    device.install(2, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"


def damaged(content: bytes) -> bytes:
    """Return an archive with a wrong byte in its last file."""
    at = len(content) - 1024 - 600
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def alien() -> SignedPackage:
    best = variant("best")
    info = msgspec.structs.replace(best.info, runtime="tensorrt")
    return package("2.0.0", [(msgspec.structs.replace(best, info=info), b"x")])


def partial() -> bytes:
    """Return the archive of one variant of two."""
    small = NEW.index.file("variants/small/model.json").sha256
    return joined(m for m in members_of(NEW) if not m[0].endswith(small))


REFUSED: dict[str, tuple[Callable[[], bytes], type[FleetError], str]] = {
    "noise": (lambda: b"noise" * 500, FleetError, "fleet package export"),
    "a stranger's": (
        lambda: file_of(package("2.0.0", [(variant("best"), b"e")], key=STRANGER_KEY)),
        SignatureError,
        "trusted key",
    ),
    "for other devices": (lambda: file_of(alien()), NoVariantError, "needs the runtime tensorrt"),
    "without what fits": (partial, NoVariantError, "lacks variants/small/model.json, which"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    device: SimulatedDevice, name: str
) -> None:
    content, kind, fact = REFUSED[name]
    before = on_disk(device)
    with pytest.raises(kind, match=fact):
        device.hand_over(Held(content()))
    assert on_disk(device) == before


def test_a_package_that_the_storage_cannot_hold_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    device = SimulatedDevice(tmp_path, profile=msgspec.structs.replace(PROFILE, storage_bytes=4000))
    device.boot()
    before = on_disk(device)
    with pytest.raises(StorageFullError, match="of the 4000 that the profile allows"):
        device.hand_over(Held(file_of(NEW)))
    assert on_disk(device) == before


def test_a_wrong_byte_never_gets_the_name_of_a_file(device: SimulatedDevice) -> None:
    with pytest.raises(IntegrityError, match="in the package file differs"):
        device.hand_over(Held(damaged(file_of(NEW))))
    place = device.slots.directory(NEW.digest)
    for entry in NEW.index.files:
        path = place / entry.path
        assert not path.exists() or path.read_bytes() == NEW.files[entry.path]
    device.hand_over(Held(file_of(NEW)))
    order(device, 2, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"


def test_links_on_the_device_lead_nowhere(device: SimulatedDevice, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    incoming = device.root / "incoming" / NEW.digest
    incoming.mkdir()
    (incoming / "variants").symlink_to(outside)
    (incoming / MANIFEST_FILE).symlink_to(outside / "manifest")
    device.hand_over(Held(file_of(NEW)))
    assert list(outside.iterdir()) == []
    order(device, 2, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"


class Cut(Held):
    """A file during whose reading the power is cut."""

    def __init__(self, content: bytes, after: int) -> None:
        super().__init__(content)
        self._after = after

    def read(self, offset: int, length: int) -> bytes:
        if len(self.reads) == self._after:
            raise PowerCut
        return super().read(offset, length)


def test_a_power_cut_at_any_read_leaves_the_device_as_it_was(tmp_path: Path) -> None:
    for after in itertools.count():
        device = SimulatedDevice(tmp_path / str(after))
        device.boot()
        device.install(1, OLD)
        device.server.blobs.clear()
        device.server.sent.clear()
        try:
            device.hand_over(Cut(file_of(NEW), after))
        except PowerCut:
            device.reboot()
            assert device.adaptation.active() == (OLD.digest, "best")
            assert device.slots.whole() == (OLD.digest,)
        else:
            assert after > 10, "it was read in parts"
            break
        assert device.hand_over(Held(file_of(NEW))).digest == NEW.digest
        order(device, 2, NEW)
        assert device.adaptation.active() == (NEW.digest, "best")
        assert device.server.sent == []


def test_chunks_that_came_before_a_cut_are_not_read_again(device: SimulatedDevice) -> None:
    content = file_of(NEW)
    whole = Held(content)
    device.preload.open(whole)
    headers = len(whole.reads)
    with pytest.raises(PowerCut):
        device.hand_over(Cut(content, headers + 4))
    device.reboot()
    again = Held(content)
    device.hand_over(again)
    chunks = sum(len(entry.chunks) for entry in NEW.index.files)
    assert len(again.reads) - headers == chunks - 4


def test_what_is_damaged_of_the_installed_package_is_mended(device: SimulatedDevice) -> None:
    model = device.slots.directory(OLD.digest) / "variants/best/model.json"
    model.write_bytes(b"damaged")
    told = device.hand_over(Held(file_of(OLD)))
    assert told.stored_bytes == len(OLD.files["variants/best/model.json"])
    assert model.read_bytes() == OLD.files["variants/best/model.json"]
    assert not (device.root / "preloaded").is_symlink()


def interject(device: SimulatedDevice, content: bytes) -> None:
    device.interrupts.interject(lambda: _ignore(device.hand_over(Held(content))), lambda: None)


def _ignore(_value: object) -> None:
    """Do nothing."""


def test_an_idle_device_takes_it_at_once(device: SimulatedDevice, installs: Installs) -> None:
    interject(device, file_of(NEW))
    assert device.slots.preloaded() == NEW.digest
    installs.offer(wanted(desired(2, NEW)[0]))
    until(lambda: device.heard.outcomes[-1].revision == 2)
    assert device.server.sent == []


def test_an_install_that_waits_for_its_chunks_goes_on(
    device: SimulatedDevice, installs: Installs
) -> None:
    device.server.add(*NEW.blobs)
    kept = {entry.sha256 for entry in NEW.index.files if entry.path != MANIFEST_FILE}

    def lose(chunk: Chunk) -> Chunk | None:
        return None if chunk.sha256 in kept else chunk

    device.server.tamper = lose
    installs.offer(wanted(desired(2, NEW)[0]))
    until(lambda: device.store.state.state is State.FETCHING)
    interject(device, file_of(NEW))
    until(lambda: device.heard.outcomes[-1].revision == 2)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert {sha256 for sha256, _ in device.server.sent}.isdisjoint(kept)


def test_a_fault_of_the_file_does_no_harm_to_the_install_that_waits(
    device: SimulatedDevice, installs: Installs
) -> None:
    device.server.add(*NEW.blobs)
    lost = [True]
    device.server.tamper = lambda chunk: None if lost else chunk
    installs.offer(wanted(desired(2, NEW)[0]))
    until(lambda: device.store.state.state is State.PREFLIGHT)

    def work() -> None:
        lost.clear()
        device.hand_over(Held(b"noise" * 1000))

    with pytest.raises(FleetError, match="fleet package export"):
        device.interrupts.interject(work, lambda: None)
    until(lambda: device.heard.outcomes[-1].revision == 2)
    assert device.heard.outcomes[-1].outcome == "succeeded"


def test_it_gets_no_storage_that_an_install_under_way_still_needs(tmp_path: Path) -> None:
    size_bytes = [sum(map(len, (p.envelope, *p.files.values()))) for p in (OLD, NEW, NEWER)]
    profile = msgspec.structs.replace(PROFILE, storage_bytes=sum(size_bytes) - 1000)
    device = SimulatedDevice(tmp_path, profile=profile)
    device.boot()
    device.install(1, OLD)
    refused: list[str] = []

    def hand_over(where: str, state: State) -> None:
        if where == "effect" and state is State.FETCHING and not refused:
            with pytest.raises(StorageFullError) as told:
                device.hand_over(Held(file_of(NEWER)))
            refused.append(str(told.value))

    device.hook = hand_over
    device.install(2, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert "allows to packages only" in refused[0]


def test_one_at_a_time_and_only_while_somebody_waits(device: SimulatedDevice) -> None:
    gone = threading.Event()
    refusals: list[FleetError] = []

    def still_there() -> None:
        if gone.is_set():
            raise ControlError("the client has gone")

    def wait() -> None:
        try:
            device.interrupts.interject(refusals.clear, still_there)
        except FleetError as exc:
            refusals.append(exc)

    with device.interrupts.turn():  # as an install that comes to no safe point
        first = threading.Thread(target=wait)
        first.start()
        until(lambda: goes_first(device))
        with pytest.raises(ControlError, match="another package is being stored"):
            interject(device, file_of(NEW))
        gone.set()
        finished(first)
    assert [exc.message for exc in refusals] == ["the client has gone"]
    assert not goes_first(device)
    interject(device, file_of(NEW))
    assert device.slots.preloaded() == NEW.digest


def goes_first(device: SimulatedDevice) -> bool:
    """Tell whether an install would have to let a handover go first."""
    try:
        device.interrupts.check(abandon=True)
    except InterjectedError:
        return True
    return False


def test_the_envelope_keeps_its_bytes(device: SimulatedDevice) -> None:
    device.hand_over(Held(file_of(NEW)))
    assert (device.slots.directory(NEW.digest) / ENVELOPE_FILE).read_bytes() == NEW.envelope


def test_it_stays_until_its_own_model_needs_it_whatever_another_model_installs(
    tmp_path: Path,
) -> None:
    speech = package("1.0.0", [(variant("best"), b"speech" * 300)], name="speech")
    device = SimulatedDevice(tmp_path, names=("digits", "speech"))
    device.boot()
    device.install(1, OLD)
    device.hand_over(Held(file_of(NEW)))
    device.install(2, speech)
    assert device.slots.preloaded() == NEW.digest
    device.server.blobs.clear()
    device.server.sent.clear()
    order(device, 3, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.server.sent == []
    assert device.slots.serving() == {"digits": NEW.digest, "speech": speech.digest}


@pytest.mark.parametrize("under_way", ["digits", "speech"])
def test_it_gets_no_storage_that_an_install_of_any_model_still_needs(
    tmp_path: Path, under_way: str
) -> None:
    """An install that a restart interrupted is under way, and waits for the handover."""
    content = {"digits": NEW, "speech": package("1.0.0", [(variant("best"), b"s" * 6000)],
               name="speech")}  # fmt: skip
    size_bytes = [sum(map(len, (p.envelope, *p.files.values()))) for p in content.values()]
    given = next(p for name, p in content.items() if name != under_way)
    profile = msgspec.structs.replace(PROFILE, storage_bytes=sum(size_bytes) - 1000)
    device = SimulatedDevice(tmp_path, profile=profile, names=("digits", "speech"))
    device.boot()

    def cut(where: str, state: State) -> None:
        if where == "effect" and state is State.FETCHING:
            raise PowerCut

    device.hook = cut
    with pytest.raises(PowerCut):
        device.install(1, content[under_way])
    device.hook = lambda _where, _state: None
    device.lose_power()
    device.boot()
    with pytest.raises(StorageFullError, match="allows to packages only"):
        device.hand_over(Held(file_of(given)))
    device.reboot()
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.slots.serving() == {under_way: content[under_way].digest}
