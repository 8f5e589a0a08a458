"""The explorer of crash states: all that a power cut may leave, and what a device does with it.

A program runs below strace, and `tests.crash_states.states` tells which states of its directory a
crash may leave. From each of them the agent's own code starts again. The stricter model is used, in
which `fsync` of a new file does not make its name durable. Three planted installers stay here to
show that the explorer finds what is wrong, and a fourth one that it finds nothing where all is
well.

`BOOTED` states of each story of a device are booted. The files of trusted metadata are read in
every state, and `BELIEVED` states of each story go on, because each starts a process. They are
chosen with a fixed seed; a thorough run takes them all, which takes half an hour.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agent.install.slots import Slots
from agent.install.store import FileStateStore
from agent.trust.floors import Floors, versions_of
from agent.trust.kept import KeptFiles
from tests.crash_states import device_story, part_story, planted, trust_story
from tests.crash_states.device_story import STORIES
from tests.crash_states.recorder import RecordingError
from tests.crash_states.recording import Recording, lacking, record, tree_of
from tests.crash_states.replay import materialise
from tests.crash_states.states import CrashState, crash_states
from tests.simulators.clock import FakeClock
from tests.simulators.repository import Repository
from tests.thorough import THOROUGH
from wire.codec import from_json

WHY = lacking()
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)
BELIEVED = 8
BOOTED = 100
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder, in memory where that is possible: what is replayed need not last."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=place) as made:
        yield Path(made)


def recorded(folder: Path, program: str, *arguments: str) -> Recording:
    """Record what a program of `tests.crash_states` does to a folder."""
    return record([sys.executable, "-P", "-m", f"tests.crash_states.{program}", *arguments], folder)


def chosen(states: Sequence[CrashState], count: int) -> Sequence[CrashState]:
    if len(states) <= count or THOROUGH:
        return states
    return random.Random(7).sample(states, count)


def planted_faults(folder: Path, mode: str, *, is_strict: bool) -> list[str]:
    """Return what is wrong after the crashes of a planted installer."""
    root, out = folder / "root", folder / "out"
    root.mkdir()
    planted.install(root, "1.0.0", "inplace" if mode == "inplace" else "full")
    recording = recorded(root, "planted", mode, str(root))
    faults = []
    for state in crash_states(recording.before, recording.operations, is_strict=is_strict):
        materialise(state.tree, out)
        if fault := planted.fault(out, state.said):
            faults.append(f"{fault}, {state}")
    return faults


@pytest.mark.parametrize("is_strict", [False, True], ids=["usual", "strict"])
@pytest.mark.parametrize("mode", planted.BROKEN)
def test_a_planted_installer_that_loses_models_is_found(
    folder: Path, mode: str, *, is_strict: bool
) -> None:
    assert planted_faults(folder, mode, is_strict=is_strict)


@pytest.mark.parametrize("is_strict", [False, True], ids=["usual", "strict"])
def test_the_planted_installer_that_does_all_is_found_right(
    folder: Path, *, is_strict: bool
) -> None:
    assert planted_faults(folder, "full", is_strict=is_strict) == []


@pytest.mark.few(2)
@pytest.mark.parametrize("name", STORIES)
def test_a_device_serves_and_goes_on_after_any_crash_of_an_install(folder: Path, name: str) -> None:
    story, root, out = STORIES[name], folder / "root", folder / "out"
    root.mkdir()
    device_story.prepare(story, root)
    recording = recorded(root, "device_story", name, str(root))
    states = crash_states(recording.before, recording.operations, is_strict=True)
    # A device that met no crash says which files are left when the next release serves.
    assert device_story.after_crash(story, root, states[-1].said) == ""
    expected = device_story.paths_in(root)
    faults = []
    for state in chosen(states, BOOTED):
        materialise(state.tree, out)
        fault = device_story.after_crash(story, out, state.said)
        differing = (device_story.paths_in(out) ^ expected) - device_story.MAY_DIFFER
        if fault or differing:
            faults.append(f"{fault or sorted(differing)}, {state}")
    assert faults == []


@pytest.mark.parametrize("number", [0, 1], ids=["first set", "newer set"])
def test_trusted_metadata_never_goes_back_after_a_crash(folder: Path, number: int) -> None:
    trust_story.prepare(folder)
    sent, root, out = trust_story.sent_to(folder), folder / "state", folder / "out"
    for earlier in range(number):
        trust_story.take(sent, earlier, root, lambda _text: None)
    recording = recorded(root, "trust_story", str(number), str(folder))
    states = crash_states(recording.before, recording.operations, is_strict=True)
    faults = []
    for state in states:
        materialise(state.tree, out)
        if fault := kept_fault(out, state.said):
            faults.append(f"{fault}, {state}")
    assert faults == []
    for state in chosen(states, BELIEVED):
        materialise(state.tree, out)
        believer = trust_story.Believer(sent.fleet, out)
        believer.trust.want("digits")
        believer.hear(sent.sets[number])
        why = believer.trust.later("digits", f"{number + 1}.0.0", trust_story.DIGESTS[number])
        assert why is None, f"{why}, {believer.trust.refused}, {state}"


BEGIN_ANEW = """
import sys
from pathlib import Path
from agent.trust.kept import KeptFiles
root = Path(sys.argv[1])
kept = KeptFiles(root / "root.json", root / "trust")
assert kept.trusted is None and not kept.floors.root
"""


def test_a_device_that_begins_anew_keeps_nothing_of_the_root_before_after_a_crash(
    folder: Path,
) -> None:
    trust_story.prepare(folder)
    sent, root, out = trust_story.sent_to(folder), folder / "state", folder / "out"
    for number in (0, 1):
        trust_story.take(sent, number, root, lambda _text: None)
    other = Repository(now_s=trust_story.NOW_S + 3600.0, fleet=sent.fleet)
    other.write_root(root / "root.json")
    recording = record([sys.executable, "-P", "-c", BEGIN_ANEW, str(root)], root)
    faults = []
    for state in crash_states(recording.before, recording.operations, is_strict=True):
        materialise(state.tree, out)
        kept = KeptFiles(out / "root.json", out / "trust")
        if kept.trusted is not None or kept.floors != Floors():
            faults.append(f"what the root before vouched for is believed, {state}")
    assert faults == []


def test_what_was_flushed_of_a_blob_is_here_after_any_crash(folder: Path) -> None:
    root, out = folder / "root", folder / "out"
    (root / "parts").mkdir(parents=True)
    faults = []
    for state in part_states("fetch", root):
        materialise(state.tree, out)
        with part_story.part_in(out, FakeClock()) as part:
            found_bytes = part.recall(lambda: None)
        if found_bytes < max(map(int, state.said), default=0):
            faults.append(f"{found_bytes} of {state.said[-1]} bytes, {state}")
    assert faults == []


def test_a_link_names_the_package_of_before_or_the_new_one_after_any_crash(folder: Path) -> None:
    """Also where the record is lost, so that nothing else tells what serves."""
    root, out, old, new = folder / "root", folder / "out", part_story.OLD, part_story.NEW
    slots = Slots(root)
    for digest in (old, new):
        (root / "packages" / digest).mkdir()
    slots.of("digits").switch(old)
    may_name = {0: {old, new}, 1: {new, part_story.NONE}, 2: {part_story.NONE}}
    faults = []
    for state in part_states("switch", root):
        materialise(state.tree, out)
        named = str(Slots(out).of("digits").current())
        if named not in may_name[len(state.said)]:
            faults.append(f"{named[:8]} after {state.said}, {state}")
    assert faults == []


def test_a_second_power_cut_while_records_are_mended_is_no_fault(folder: Path) -> None:
    root, out = folder / "root", folder / "out"
    root.mkdir()
    part_story.leave_one_old(root)
    faults = []
    for state in part_states("mend", root):
        materialise(state.tree, out)
        store = FileStateStore(out)
        if store.faults or store.lost or (store.state.revision, store.floor) != (2, 2):
            faults.append(f"{store.faults}, revision {store.state.revision}, {state}")
    assert faults == []


def test_half_a_file_of_metadata_goes_with_the_next_check(folder: Path) -> None:
    trust_story.prepare(folder)
    sent, state = trust_story.sent_to(folder), folder / "state"
    trust_story.take(sent, 0, state, lambda _text: None)
    left = state / "trust" / "metadata" / "tmpabc123"
    left.write_bytes(b"half of a ")
    trust_story.take(sent, 1, state, lambda _text: None)
    assert not left.exists()


def part_states(part: str, root: Path) -> list[CrashState]:
    recording = recorded(root, "part_story", part, str(root))
    return list(crash_states(recording.before, recording.operations, is_strict=True))


def kept_fault(root: Path, said: tuple[str, ...]) -> str:
    """Return what a start finds wrong in the files of trusted metadata; empty if nothing."""
    kept = KeptFiles(root / "root.json", root / "trust")
    if kept.trusted is not None:
        known, least = kept.trusted.versions, versions_of(kept.floors)
        for role in ("root", "timestamp", "snapshot", "targets"):
            if getattr(known, role) > getattr(least, role):
                return f"{role} {getattr(known, role)} is believed above its floor"
    told = [s.removeprefix(trust_story.FLOORS) for s in said if s.startswith(trust_story.FLOORS)]
    if told:
        floors = from_json(told[-1].encode(), Floors, limit_bytes=2**20)
        if fault := trust_story.lower(kept.floors, floors):
            return fault
    for each in said:
        digest = each.removeprefix(trust_story.ACCEPTED)
        if each.startswith(trust_story.ACCEPTED) and digest not in kept.accepted:
            return f"{digest} is believed no more"
    for name in ("floors", "accepted"):
        copies = [root / "trust" / f"{name}.json", root / "trust" / f"{name}.copy.json"]
        contents = {file.read_bytes() if file.exists() else None for file in copies}
        if len(contents) > 1:
            return f"the copies of {name} differ"
    return ""


EVERYTHING = """
import os, shutil, subprocess, sys
root = sys.argv[1]
os.makedirs(f"{root}/a/b")
with open(f"{root}/a/b/é", "wb", buffering=0) as file:
    file.write(b"one, two = 3\\0")
    file.seek(3)
    file.write(b"x")
os.rename(f"{root}/a/b/é", f"{root}/a/x")
descriptor = os.open(f"{root}/a/x", os.O_RDWR | os.O_APPEND)
os.pwrite(descriptor, b"zz", 3)
os.writev(descriptor, [b"k", b"l"])
os.ftruncate(descriptor, 9)
os.posix_fallocate(descriptor, 0, 40)
os.fdatasync(descriptor)
shutil.copyfile(f"{root}/a/x", f"{root}/copied")
with open(f"{root}/copied", "rb") as old, open(f"{root}/part", "wb") as new:
    os.copy_file_range(old.fileno(), new.fileno(), 5)
os.symlink("a/x", f"{root}/link")
os.link(f"{root}/copied", f"{root}/second")
os.truncate(f"{root}/second", 2)
os.mkdir(f"{root}/gone")
os.rmdir(f"{root}/gone")
shutil.rmtree(f"{root}/a")
subprocess.run([sys.executable, "-c", f"open('{root}/other', 'w').write('2')"], check=True)
os.sync()
print("said: done", flush=True)
"""


def test_what_is_recorded_rebuilds_the_folder(folder: Path) -> None:
    root = folder / "root"
    root.mkdir()
    (root / "copied").write_bytes(b"longer than what comes in its place" * 3)
    recording = record([sys.executable, "-c", EVERYTHING, str(root)], root)
    last = crash_states(recording.before, recording.operations)[-1]
    assert last.said == ("done",)
    assert last.tree == tree_of(root)


MAPPED = (
    "import mmap; file = open(root + '/f', 'w+b', 0); file.write(b'1'); "
    "mmap.mmap(file.fileno(), 1)[0] = 50"
)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("os.mkfifo(root + '/pipe')", "mknod"),
        (MAPPED, "mmap"),
        ("file = open(root + '/f', 'wb', 0); os.unlink(root + '/f'); file.write(b'1')", "no name"),
        ("file = open(root + '/f', 'wb', 0); os.write(os.dup(file.fileno()), b'1')", "where write"),
        ("os.symlink('.', root + '/l'); os.mkdir(root + '/l/d')", "through a link"),
        ("os.mkdir('relative') or os.rmdir('relative')", "relative path"),
        ("os.chdir(root)", "chdir"),
        ("sys.exit('it fails')", "it fails"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_is_refused(folder: Path, program: str, why: str) -> None:
    root = folder / "root"
    root.mkdir()
    code = f"import os, sys; root = sys.argv[1]; {program}"
    with pytest.raises(RecordingError, match=why):
        record([sys.executable, "-c", code, str(root)], root)
