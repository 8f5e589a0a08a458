"""What an install refuses, keeps and reuses."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from agent.errors import NoVariantError, StorageFullError
from agent.install.preflight import FREE_MARGIN_BYTES, check_memory, check_storage
from agent.install.states import State
from tests.simulators.archives import Held, file_of
from tests.simulators.device import PowerCut, SimulatedDevice, nothing
from tests.simulators.packages import (
    PROFILE,
    RELEASE_KEY,
    STRANGER_KEY,
    SignedPackage,
    package,
    two_variants,
    variant,
)
from wire.delivery import Chunk
from wire.health import HealthSnapshot
from wire.installs import InstallReport, ReleaseRef
from wire.package.index import PAYLOAD_TYPE
from wire.policy import PolicySpec
from wire.profile import only_runtimes
from wire.trust.envelope import seal

OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
SPEECH = package("1.0.0", [(variant("best"), b"speech best")], name="speech")


@pytest.fixture
def device(tmp_path: Path) -> SimulatedDevice:
    """Return a device on which the old package serves."""
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, OLD)
    return device


def failed(device: SimulatedDevice, wanted: SignedPackage | ReleaseRef) -> InstallReport:
    """Install what must fail; the old package goes on, and nothing of the new one is left."""
    if isinstance(wanted, SignedPackage):
        device.server.add(*wanted.blobs)
    device.accept(2, wanted)
    device.machine.run()
    report = device.heard.outcomes[-1]
    assert report.outcome == "failed"
    assert report.active == OLD.digest
    assert device.served == [b"old best"]
    assert device.slots.whole() == (OLD.digest,)
    assert list((device.root / "incoming").iterdir()) == []
    assert list(device.slots.parts.iterdir()) == []
    return report


def test_a_package_that_a_stranger_signed(device: SimulatedDevice) -> None:
    forged = package("2.0.0", [(variant("best"), b"evil")], key=STRANGER_KEY)
    report = failed(device, forged)
    assert (report.phase, report.error_code) == ("preflight", "wire.signature")


def test_an_envelope_of_another_package(device: SimulatedDevice) -> None:
    swapped = msgspec.structs.replace(NEW.ref, digest=two_variants("3.0.0").digest)
    device.server.add(*NEW.blobs)
    assert failed(device, swapped).error_code == "wire.integrity"


def test_a_release_that_is_another_version(device: SimulatedDevice) -> None:
    device.server.add(*NEW.blobs)
    report = failed(device, msgspec.structs.replace(NEW.ref, version="9.9.9"))
    assert report.error_code == "agent.refused"
    assert report.detail == "digits:9.9.9 was ordered, but the package is digits:2.0.0"


def test_a_package_for_other_devices(device: SimulatedDevice) -> None:
    made = variant("best")
    alien = msgspec.structs.replace(
        made, info=msgspec.structs.replace(made.info, runtime="tensorrt")
    )
    report = failed(device, package("2.0.0", [(alien, b"x")]))
    assert report.error_code == "agent.variant"
    assert "best needs the runtime tensorrt" in report.detail
    assert report.detail.endswith("pip install 'edgefleet[tensorrt]'")


def test_a_package_larger_than_the_storage_that_packages_may_use(tmp_path: Path) -> None:
    profile = msgspec.structs.replace(PROFILE, storage_bytes=20_000)
    device = SimulatedDevice(tmp_path, profile=profile)
    device.boot()
    device.install(1, OLD)
    report = failed(device, two_variants("2.0.0", best="x" * 30_000))
    assert (report.phase, report.error_code) == ("preflight", "agent.storage.full")
    assert "of the 20000 that the profile allows to packages only " in report.detail
    assert report.detail.endswith("; raise storage_bytes in the profile of the device")
    sent = [name for name, _ in device.server.sent]
    assert len(sent) < 30_000 / 1024, "only what says what the package is has come"


def test_a_package_that_was_handed_over_counts_and_goes_when_another_needs_its_share(
    tmp_path: Path,
) -> None:
    profile = msgspec.structs.replace(PROFILE, storage_bytes=1_000_000)
    device = SimulatedDevice(tmp_path, profile=profile)
    device.boot()
    sizes = ("1.0.0", 400_000), ("2.0.0", 400_000), ("3.0.0", 50_000), ("4.0.0", 400_000)
    first, given, small, last = (two_variants(v, best=v + "b" * n, small="s") for v, n in sizes)
    device.install(1, first)
    device.hand_over(Held(file_of(given)))
    device.install(2, small)
    assert device.slots.preloaded() == given.digest, "there is enough for all three"
    device.install(3, first)
    device.install(4, last)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.slots.preloaded() is None
    held = [path for name in ("packages", "incoming") for path in (tmp_path / name).rglob("*")]
    assert sum(path.stat().st_size for path in held if path.is_file()) <= 1_000_000


def test_a_disk_without_room_tells_the_reserve_and_the_remedy(device: SimulatedDevice) -> None:
    free = device.slots.free_bytes() - FREE_MARGIN_BYTES
    with pytest.raises(StorageFullError) as caught:
        check_storage(device.slots, needed_bytes=2**60, allowed_bytes=2**61, keep=())
    found = re.search(
        r"needs (\d+) bytes, but only (\d+) are free beside the reserve of (\d+)", str(caught.value)
    )
    assert found is not None
    assert (int(found[1]), int(found[3])) == (2**60, FREE_MARGIN_BYTES)
    assert abs(int(found[2]) - free) < 2**34, "others write to this disk too"
    assert caught.value.remedy == "free some storage on the device"


def test_a_package_that_needs_more_memory_than_there_is(device: SimulatedDevice) -> None:
    device.adaptation.note(HealthSnapshot(at_s=0, memory_available_bytes=512))
    assert failed(device, NEW).error_code == "agent.variant"


@pytest.mark.parametrize(
    ("neighbours", "beside"),
    [
        ({}, ""),
        (
            {"speech": 300, "faces": 20},
            " beside the other models: faces holds 20, speech holds 300",
        ),
    ],
)
def test_what_other_models_hold_is_told_where_memory_lacks(
    neighbours: dict[str, int], beside: str
) -> None:
    health = HealthSnapshot(at_s=0, memory_available_bytes=512)
    big, bigger = variant("best", memory_bytes=2000), variant("small", memory_bytes=1000)
    with pytest.raises(NoVariantError) as caught:
        check_memory("digits:2.0.0", (big, bigger), health, neighbours)
    assert caught.value.message == (
        "the smallest variant of digits:2.0.0 needs 1000 bytes of memory, but only 512 are "
        f"available{beside}"
    )
    assert bool(caught.value.remedy) == bool(neighbours)
    check_memory("digits:2.0.0", (variant("small", memory_bytes=512),), health, neighbours)


def test_an_install_gets_no_storage_that_another_model_still_needs(tmp_path: Path) -> None:
    digits = package("1.0.0", [(variant("best"), b"d" * 60_000)])
    speech = package("1.0.0", [(variant("best"), b"s" * 60_000)], name="speech")
    profile = msgspec.structs.replace(PROFILE, storage_bytes=100_000)
    device = SimulatedDevice(tmp_path, profile=profile, names=("digits", "speech"))
    device.boot()

    def cut(where: str, state: State) -> None:
        if (where, state) == ("effect", State.FETCHING):
            raise PowerCut

    device.hook = cut
    with pytest.raises(PowerCut):
        device.install(1, digits)
    device.hook = nothing
    device.lose_power()
    device.boot()
    device.install(1, speech)
    report = device.heard.outcomes[-1]
    assert (report.model, report.error_code) == ("speech", "agent.storage.full")
    device.models["digits"].machine.run()
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.slots.used_bytes() <= 100_000


def on_disk(device: SimulatedDevice, of: str) -> list[str]:
    """Return the paths of files below the state directory that have to do with a digest."""
    return [str(path) for path in device.root.rglob("*") if of in str(path) or of in link(path)]


def link(path: Path) -> str:
    return str(path.readlink()) if path.is_symlink() else ""


def two_models(root: Path) -> SimulatedDevice:
    device = SimulatedDevice(root, names=("digits", "speech"))
    device.boot()
    device.install(1, OLD)
    device.install(2, NEW)
    device.install(3, SPEECH)
    return device


def test_a_removed_model_leaves_nothing_and_takes_nothing_from_the_other(tmp_path: Path) -> None:
    device = two_models(tmp_path)
    device.installer.remove()
    device.installer.remove()
    assert on_disk(device, OLD.digest) == on_disk(device, NEW.digest) == []
    assert device.adaptation.active() == (None, None)
    assert set(device.files.state.models) == {"speech"}
    assert device.models["speech"].adaptation.active() == (SPEECH.digest, "best")
    device.reboot()
    assert device.models["speech"].adaptation.active() == (SPEECH.digest, "best")
    assert device.adaptation.active() == (None, None)


def test_a_power_cut_at_any_point_of_a_removal_leaves_something_to_remove_or_nothing(
    tmp_path: Path,
) -> None:
    points = ("withdraw", "write state.copy.json", "written state.copy.json",
              "write state.json", "written state.json")  # fmt: skip
    for point in points:
        device = two_models(tmp_path / point.replace(" ", "-"))
        cuts: list[str] = []

        def cut(where: str, _state: State, point: str = point, cuts: list[str] = cuts) -> None:
            if where == point and not cuts:
                cuts.append(where)
                raise PowerCut

        device.hook = cut
        with pytest.raises(PowerCut):
            device.installer.remove()
        assert cuts == [point]
        device.reboot()
        known = {*device.files.state.models, *device.slots.serving()}
        left = [*on_disk(device, OLD.digest), *on_disk(device, NEW.digest)]
        assert "digits" in known or not left, "else nobody would ever remove it"
        device.installer.remove()
        assert on_disk(device, NEW.digest) == []
        assert device.slots.serving() == {"speech": SPEECH.digest}
        assert device.models["speech"].adaptation.active() == (SPEECH.digest, "best")


def test_what_was_handed_over_outlives_the_removal_of_a_model(tmp_path: Path) -> None:
    device = two_models(tmp_path)
    given = two_variants("3.0.0")
    device.hand_over(Held(file_of(given)))
    device.installer.remove()
    assert device.slots.preloaded() == given.digest
    device.server.blobs.clear()
    device.install(4, given)
    assert device.adaptation.active() == (given.digest, "best")


def test_a_blob_that_the_controller_has_not(device: SimulatedDevice) -> None:
    device.server.add(NEW.envelope, NEW.files["manifest.json"])
    device.accept(2, NEW)
    device.machine.run()
    report = device.heard.outcomes[-1]
    assert (report.phase, report.error_code) == ("fetching", "agent.fetch.missing")


def test_chunks_that_are_forged_all_along(device: SimulatedDevice) -> None:
    device.server.add(*NEW.blobs)
    device.server.tamper = lambda c: Chunk(sha256=c.sha256, index=c.index, data=b"\0" * len(c.data))
    report = failed(device, NEW)
    assert report.phase == "preflight"
    assert report.error_code == "agent.fetch"


def test_chunks_that_do_not_make_up_the_signed_file(device: SimulatedDevice) -> None:
    path = "variants/best/model.json"
    files = tuple(
        msgspec.structs.replace(entry, sha256="0" * 64) if entry.path == path else entry
        for entry in NEW.index.files
    )
    index = msgspec.structs.replace(NEW.index, files=files)
    envelope = seal(index.to_bytes(), payload_type=PAYLOAD_TYPE, keys=[RELEASE_KEY])
    device.server.blobs["0" * 64] = NEW.files[path]
    report = failed(device, SignedPackage(files=NEW.files, envelope=envelope, index=index))
    assert (report.phase, report.error_code) == ("verifying", "wire.integrity")


def test_what_is_used_first_is_fetched_first(device: SimulatedDevice) -> None:
    better = variant("a-slow", accuracy=0.999, latency_ms=80.0)
    made = package(
        "2.0.0",
        [
            (variant("m-small", accuracy=0.8, latency_ms=1.0), b"small"),
            (variant("z-best", accuracy=0.9999, latency_ms=90.0), b"best"),
            (better, b"better"),
        ],
    )
    device.install(2, made)
    models = {entry.sha256: entry.path for entry in made.index.files}
    sent = [models[digest] for digest, _ in device.server.sent if digest in models]
    assert [path.split("/")[1] for path in sent if "/" in path] == ["z-best", "a-slow", "m-small"]


def test_a_file_that_rots_between_fetching_and_verifying(device: SimulatedDevice) -> None:
    def rot(where: str, at: State) -> None:
        if (where, at) == ("effected", State.FETCHING):
            path = device.slots.directory(NEW.digest) / "variants/best/model.json"
            path.write_bytes(b"new bost")

    device.hook = rot
    report = failed(device, NEW)
    assert (report.phase, report.error_code) == ("verifying", "wire.integrity")


@pytest.mark.parametrize("state", [State.PROBING, State.SWITCHING])
def test_a_file_that_rots_after_verifying_is_never_loaded(
    device: SimulatedDevice, state: State
) -> None:
    def rot(where: str, at: State) -> None:
        if (where, at) == ("effect", state):
            for name in ("best", "small"):
                path = device.slots.directory(NEW.digest) / f"variants/{name}/model.json"
                path.write_bytes(b"new rot")

    device.hook = rot
    report = failed(device, NEW)
    assert report.phase == state.value


def test_variants_of_a_runtime_that_the_device_lacks_are_not_fetched(tmp_path: Path) -> None:
    declared = msgspec.structs.replace(PROFILE, runtimes=("null", "tensorrt"))
    device = SimulatedDevice(tmp_path, profile=only_runtimes(declared, ("null",)))
    device.boot()
    fast = variant("fast", accuracy=0.99)
    info = msgspec.structs.replace(fast.info, runtime="tensorrt", profiles=(PROFILE.name,))
    slow = variant("slow", accuracy=0.9)
    kept = msgspec.structs.replace(slow.info, profiles=(PROFILE.name,))
    made = package(
        "1.0.0",
        [
            (msgspec.structs.replace(fast, info=info), b"not for this device"),
            (msgspec.structs.replace(slow, info=kept), b"slow"),
        ],
    )
    device.install(1, made)
    report = device.heard.outcomes[-1]
    assert (report.outcome, report.variant) == ("succeeded", "slow")
    files = {path.name for path in (device.slots.directory(made.digest) / "variants").iterdir()}
    assert files == {"slow"}


def test_only_variants_that_fit_are_fetched(device: SimulatedDevice) -> None:
    made = variant("arm")
    needs = msgspec.structs.replace(made.info.requirements, architectures=("aarch64",))
    arm = msgspec.structs.replace(made, info=msgspec.structs.replace(made.info, requirements=needs))
    mixed = package("2.0.0", [(variant("best"), b"new best"), (arm, b"for arm")])
    device.install(2, mixed)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert not (device.slots.directory(mixed.digest) / "variants/arm").exists()


def test_chunks_of_the_package_that_serves_do_not_come_again(device: SimulatedDevice) -> None:
    big = b"weights of the backbone " * 1000
    first = package("2.0.0", [(variant("best"), big + b"head 1")])
    second = package("3.0.0", [(variant("best"), big + b"head 2")])
    device.install(2, first)
    device.server.sent.clear()
    device.install(3, second)
    assert device.adaptation.active() == (second.digest, "best")
    entry = second.index.file("variants/best/model.json")
    assert [i for name, i in device.server.sent if name == entry.sha256] == [len(entry.chunks) - 1]


def test_a_package_that_is_still_here_needs_no_transfer(device: SimulatedDevice) -> None:
    device.install(2, NEW)
    device.server.sent.clear()
    device.install(3, OLD)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.adaptation.active() == (OLD.digest, "best")
    assert device.server.sent == []


def test_a_hot_device_enters_a_package_with_its_cheapest_variant(device: SimulatedDevice) -> None:
    device.adaptation.note(HealthSnapshot(at_s=0, headroom=0.95))
    device.install(2, NEW)
    assert device.adaptation.active() == (NEW.digest, "small")


def test_a_first_choice_that_does_not_load_fails_the_install(device: SimulatedDevice) -> None:
    device.bad_load.add("new best")
    report = failed(device, NEW)
    assert (report.phase, report.error_code) == ("probing", "agent.worker.load")


def test_a_variant_that_stops_loading_gives_way(device: SimulatedDevice) -> None:
    device.adaptation.policy = PolicySpec(kind="rules")
    device.bad_load.add("old small")
    device.clock.advance(60)
    device.adaptation.tick(HealthSnapshot(at_s=0, headroom=0.95))
    assert device.adaptation.active() == (OLD.digest, "best")
    names = {c.name: c.benched for c in device.adaptation.candidates()}
    assert names == {"best": "", "small": "cannot load small"}
    device.bad_load.clear()
    device.clock.advance(400)
    device.adaptation.tick(HealthSnapshot(at_s=0, headroom=0.95))
    assert device.adaptation.active() == (OLD.digest, "small")
    switch = [e for e in device.heard.events if e[0] == "switch"][-1]
    assert switch[1] == "hot: the cheapest variant"
    assert switch[2]["from"] == "best"


def test_a_variant_that_rots_on_the_storage_is_not_switched_to(device: SimulatedDevice) -> None:
    path = device.slots.directory(OLD.digest) / "variants/small/model.json"
    path.write_bytes(b"old smell")
    device.clock.advance(60)
    device.adaptation.tick(HealthSnapshot(at_s=0, headroom=0.95))
    assert device.adaptation.active() == (OLD.digest, "best")
    assert b"old smell" not in device.served


def test_a_pin_is_obeyed_and_outlives_nothing_that_may_not_serve(device: SimulatedDevice) -> None:
    device.adaptation.pinned = "small"
    device.adaptation.tick(HealthSnapshot(at_s=0, headroom=0.1))
    assert device.adaptation.active() == (OLD.digest, "small")
    device.benches.rest(OLD.digest, "small", "crashed")
    device.adaptation.tick(HealthSnapshot(at_s=0, headroom=0.1))
    assert device.adaptation.active() == (OLD.digest, "best")


def test_a_damaged_record_leaves_what_serves(device: SimulatedDevice) -> None:
    (device.root / "state.json").write_bytes(b"\0" * 10)
    device.reboot()
    assert device.faults == ("state.json was damaged; what the other files hold is used",)
    assert device.adaptation.active() == (OLD.digest, "best")
    assert device.store.state.revision == 1
    device.install(1, OLD)
    assert device.heard.outcomes[-1].outcome == "succeeded"
