"""The record of the installs: saved or not saved, in two copies, above a floor kept apart."""

from __future__ import annotations

import itertools
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.errors import StorageError
from agent.install.states import State
from agent.install.store import (
    COPY_FILE,
    FLOOR_FILE,
    MAX_STATE_BYTES,
    STATE_FILE,
    AgentState,
    Failure,
    FileStateStore,
)
from tests.simulators.packages import two_variants
from wire.codec import from_json, to_json
from wire.files import write_atomic
from wire.messages import MAX_REVISION, InstallReport

RECORDS = (STATE_FILE, COPY_FILE)
FILES = (*RECORDS, FLOOR_FILE)
RECORD = {
    "revision": 7,
    "desired": b"\x00\xffenvelope",
    "state": State.FETCHING,
    "attempts": 2,
    "target": two_variants("1.0.0").ref,
    "previous": "a" * 64,
    "failure": Failure(phase=State.PROBING, code="agent.golden", detail="no"),
    "dropped": {"a" * 64: {"small": "fails"}},
    "latencies_ms": {"a" * 64: {"best": 12.5}},
    "report": InstallReport(
        device="dev-1", revision=6, digest=None, phase="idle", outcome="succeeded", active=None
    ),
    "pinned": "best",
}
WHOLE = AgentState(**RECORD)  # type: ignore[arg-type]  # mixed values
DAMAGE = {
    "empty": b"",
    "cut": b'{"schema_version":1,"revi',
    "list": b"[]",
    "unknown": b'{"schema_version": 2}',
    "zeroes": b"\x00" * 100,
    "no checksum": b'{"revision": 3}',
    "long": b" " * (MAX_STATE_BYTES + 1),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the directory of a device that accepted revision 7."""
    FileStateStore(tmp_path).update(**RECORD)
    return tmp_path


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_record_comes_back_as_it_was(home: Path) -> None:
    again = FileStateStore(home)
    assert (again.state, again.floor, again.lost, again.faults) == (WHOLE, 7, False, ())
    assert names(home) == set(FILES)


def test_a_device_without_a_record_begins_idle_and_writes_nothing(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path)
    assert (store.state, store.floor, store.lost, store.faults) == (AgentState(), 0, False, ())
    assert names(tmp_path) == set()


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("name", RECORDS)
def test_of_a_damaged_record_nothing_is_lost(home: Path, name: str, content: bytes) -> None:
    (home / name).write_bytes(content)
    store = FileStateStore(home)
    assert (store.state, store.floor, store.lost) == (WHOLE, 7, False)
    assert store.faults == (f"{name} was damaged; what the other files hold is used",)
    assert (home / f"{name}.corrupt").read_bytes() == content
    again = FileStateStore(home)
    assert (again.state, again.floor, again.faults) == (WHOLE, 7, ())


@pytest.mark.parametrize("name", RECORDS)
def test_no_flipped_bit_is_believed(home: Path, name: str) -> None:
    intact = (home / name).read_bytes()
    places = [*range(90), *range(90, len(intact), 11)]
    for place in places:
        flipped = bytearray(intact)
        flipped[place] ^= 1 << place % 8
        (home / name).write_bytes(flipped)
        store = FileStateStore(home)
        assert (store.state, store.floor) == (WHOLE, 7)
        assert store.faults
        assert (home / name).read_bytes() == intact


def check_remnant(store: FileStateStore) -> None:
    """The record is lost; what begins no install and what the operator asked for is kept."""
    kept = {"desired", "previous", "dropped", "latencies_ms", "pinned"}
    assert store.state == AgentState(**{key: RECORD[key] for key in kept})  # type: ignore[arg-type]
    assert store.lost
    (fault,) = store.faults
    assert "signs after this start" in fault


@pytest.mark.parametrize("content", [None, *DAMAGE.values()], ids=["missing", *DAMAGE.keys()])
def test_a_record_without_its_floor_may_be_an_old_one(home: Path, content: bytes | None) -> None:
    path = home / FLOOR_FILE
    path.unlink() if content is None else path.write_bytes(content)
    for start in range(3):
        store = FileStateStore(home)
        check_remnant(store)
        assert ("floor.json: damaged" in store.faults[0]) == (start == 0 and content is not None)
        assert ("state.json: beside no floor.json" in store.faults[0]) == (start == 0)
    accepted = FileStateStore(home).update(revision=5, state=State.PREFLIGHT)
    again = FileStateStore(home)
    assert (again.state, again.floor, again.lost) == (accepted, 5, False)


def test_records_that_were_put_back_are_not_believed(home: Path) -> None:
    old = {name: (home / name).read_bytes() for name in RECORDS}
    store = FileStateStore(home)
    store.update(revision=8, pinned=None)
    store.update(revision=10, pinned="small")
    for name, content in old.items():
        (home / name).write_bytes(content)
    for start in range(2):
        store = FileStateStore(home)
        check_remnant(store)
        assert store.floor == 10
        assert ("state.copy.json: older than floor.json" in store.faults[0]) == (start == 0)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_was_put_back_beside_a_newer_one_is_told(home: Path, name: str) -> None:
    old = (home / name).read_bytes()
    FileStateStore(home).update(revision=10)
    (home / name).write_bytes(old)
    store = FileStateStore(home)
    assert (store.state.revision, store.floor, store.lost) == (10, 10, False)
    assert store.faults == (f"{name} was older than floor.json; what the other files hold is used",)


@pytest.mark.parametrize(
    "changes",
    [
        {"previous": "../../x"},
        {"target": msgspec.structs.replace(two_variants("1.0.0").ref, digest="../../x")},
        {"target": msgspec.structs.replace(two_variants("1.0.0").ref, envelope_sha256="/etc")},
    ],
    ids=["previous", "target", "envelope"],
)
def test_a_record_that_names_no_digest_is_damage(home: Path, changes: dict[str, object]) -> None:
    FileStateStore(home).update(**changes)
    store = FileStateStore(home)
    assert (store.state, store.floor, store.lost) == (AgentState(), 7, True)
    assert "state.json: damaged, state.copy.json: damaged" in store.faults[0]


@pytest.mark.parametrize("name", RECORDS)
def test_a_missing_record_is_written_again(home: Path, name: str) -> None:
    (home / name).unlink()
    store = FileStateStore(home)
    assert (store.state, store.floor, store.lost, store.faults) == (WHOLE, 7, False, ())
    assert names(home) == set(FILES)


@pytest.mark.parametrize("name", [STATE_FILE, COPY_FILE])
def test_of_two_records_the_newer_counts(home: Path, name: str) -> None:
    old = (home / name).read_bytes()
    FileStateStore(home).update(revision=8, pinned="small")
    (home / name).write_bytes(old)
    for _ in range(2):
        store = FileStateStore(home)
        assert (store.state.revision, store.state.pinned, store.floor) == (8, "small", 8)


@pytest.mark.parametrize("content", [b"\x00", None], ids=["damaged", "missing"])
def test_without_a_record_the_floor_stays(home: Path, content: bytes | None) -> None:
    for name in (STATE_FILE, COPY_FILE):
        (home / name).unlink() if content is None else (home / name).write_bytes(content)
    for number in range(3):
        store = FileStateStore(home, used=True)
        assert (store.state.revision, store.floor, store.lost) == (0, 7, True)
        store.update(pinned=f"variant {number}")
    store = FileStateStore(home)
    store.update(revision=7)
    assert not store.lost
    assert not FileStateStore(home).lost


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "missing"])
def test_a_device_that_lost_everything_knows_that_it_did(home: Path, *, damaged: bool) -> None:
    for name in FILES:
        (home / name).write_bytes(b"\x00") if damaged else (home / name).unlink()
    for start in range(2):
        store = FileStateStore(home, used=not damaged)
        assert (store.state, store.floor, store.lost) == (AgentState(), 0, True)
        (fault,) = store.faults
        assert ("state.json: damaged" in fault) == (damaged and start == 0)
        assert "signs after this start" in fault


def test_a_revision_that_cannot_be_is_damage(home: Path) -> None:
    store = FileStateStore(home)
    store.update(revision=2**63 - 1)
    again = FileStateStore(home)
    assert (again.state.revision, again.floor, again.lost) == (0, 0, True)
    again.update(revision=MAX_REVISION)
    assert FileStateStore(home).floor == MAX_REVISION


def test_the_floor_goes_down_with_the_desired_state_that_was_accepted(home: Path) -> None:
    FileStateStore(home).update(revision=3)
    store = FileStateStore(home)
    assert (store.state.revision, store.floor) == (3, 3)


@pytest.mark.parametrize("cut_at", range(8))
def test_a_power_cut_between_the_files_loses_no_floor(home: Path, cut_at: int) -> None:
    moments = itertools.count()

    class PowerCutError(Exception):
        pass

    def write(path: Path, content: bytes) -> None:
        for moment in ("before", "after"):
            if next(moments) == cut_at:
                raise PowerCutError
            if moment == "before":
                write_atomic(path, content)

    store = FileStateStore(home, write=write)
    with pytest.raises(PowerCutError):
        store.update(revision=8, desired=b"next", state=State.PREFLIGHT)
    again = FileStateStore(home)
    assert again.floor == (7 if cut_at == 0 else 8)
    assert again.state.revision == (7 if cut_at <= 2 else 8)
    assert not again.lost
    assert not again.faults
    assert FileStateStore(home).state == again.state


def test_the_power_cut_at_the_very_first_save_loses_nothing(tmp_path: Path) -> None:
    def write(path: Path, content: bytes) -> None:
        if path.name != FLOOR_FILE:
            raise OSError
        write_atomic(path, content)

    with pytest.raises(StorageError):
        FileStateStore(tmp_path, write=write).update(revision=1, desired=b"first")
    store = FileStateStore(tmp_path)
    assert (store.state, store.floor, store.lost, store.faults) == (AgentState(), 1, False, ())


def test_progress_alone_is_not_written_twice(home: Path) -> None:
    written: list[str] = []

    def write(path: Path, content: bytes) -> None:
        written.append(path.name)
        write_atomic(path, content)

    store = FileStateStore(home, write=write)
    assert written == []
    store.update(state=State.VERIFYING, attempts=1)
    assert written == [STATE_FILE]
    store.update(pinned="small")
    assert written[1:] == [COPY_FILE, STATE_FILE]
    store.update(revision=8)
    assert written[3:] == [FLOOR_FILE, COPY_FILE, STATE_FILE, FLOOR_FILE]
    store.update(revision=8)
    assert len(written) == 7


def test_the_record_of_an_agent_without_checksums_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(to_json(WHOLE))
    store = FileStateStore(tmp_path, used=True)
    assert (store.state, store.floor, store.lost, store.faults) == (WHOLE, 7, False, ())
    assert names(tmp_path) == set(FILES)
    assert b"checksum" in (tmp_path / STATE_FILE).read_bytes()


@pytest.mark.parametrize("name", [COPY_FILE, FLOOR_FILE])
def test_a_record_without_a_checksum_beside_a_damaged_file_is_not(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / STATE_FILE).write_bytes(to_json(WHOLE))
    (tmp_path / name).write_bytes(b"\0")
    check_remnant(FileStateStore(tmp_path, used=True))


def test_an_agent_without_checksums_reads_the_record(home: Path) -> None:
    read = from_json((home / STATE_FILE).read_bytes(), AgentState, limit_bytes=MAX_STATE_BYTES)
    assert read == WHOLE


def test_what_such_an_agent_wrote_after_that_counts(home: Path) -> None:
    changed = AgentState(**RECORD | {"revision": 9})  # type: ignore[arg-type]  # mixed values
    (home / STATE_FILE).write_bytes(to_json(changed))
    store = FileStateStore(home)
    assert (store.state, store.floor, store.faults) == (changed, 9, ())


@pytest.mark.parametrize("name", [*FILES, *(f".{name}.new" for name in FILES)])
def test_a_directory_in_the_place_of_a_file_is_moved_aside(home: Path, name: str) -> None:
    store = FileStateStore(home)
    for number in range(2):
        (home / name).unlink(missing_ok=True)
        (home / name).mkdir()
        (home / name / "filler").touch()
        store.update(revision=20 + number, pinned=f"variant {number}")
    again = FileStateStore(home)
    assert (again.state.revision, again.state.pinned, again.floor) == (21, "variant 1", 21)
    assert again.faults == ()


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_is_damage(home: Path, name: str) -> None:
    (home / name).unlink()
    os.mkfifo(home / name)
    os.mkfifo(home / f".{name}.new")
    store = FileStateStore(home)
    assert f"{name}" in store.faults[0]
    assert store.lost == (name == FLOOR_FILE)
    store.update(revision=20)
    assert FileStateStore(home).state.revision == 20


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file of this process grow beyond a kibibyte: a real failing write, without root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_a_state_that_cannot_be_saved_is_not_held_in_memory_or_on_disk(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path)
    store.update(revision=1)
    with pytest.raises(StorageError):
        store.update(desired=b"x" * 5000)
    assert store.state.desired == b""
    assert FileStateStore(tmp_path).state.desired == b""
