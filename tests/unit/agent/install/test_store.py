"""The records of the installs: saved or not saved, in two copies, above a floor kept apart."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import StorageError
from agent.install.records import AgentState, Failure, Floor, ModelRecord, lasting, remnant
from agent.install.states import State
from agent.install.store import (
    COPY_FILE,
    FLOOR_FILE,
    MAX_STATE_BYTES,
    STATE_FILE,
    FileStateStore,
    ModelStore,
)
from tests.simulators.packages import package, two_variants, variant
from wire.codec import from_json
from wire.desired import MAX_REVISION
from wire.files import write_atomic
from wire.installs import InstallReport

RECORDS = (STATE_FILE, COPY_FILE)
FILES = (*RECORDS, FLOOR_FILE)
SPEECH_PACKAGE = package("1.0.0", [(variant("best"), b"speech")], name="speech")
ENVELOPE = b"\x00\xffenvelope"
DIGITS = ModelRecord(
    revision=7,
    state=State.FETCHING,
    attempts=2,
    target=two_variants("1.0.0").ref,
    previous="a" * 64,
    failure=Failure(phase=State.PROBING, code="agent.golden", detail="no"),
    dropped={"a" * 64: {"small": "fails"}},
    latencies_ms={"a" * 64: {"best": 12.5}},
    agreements={"a" * 64: {"best": 1.0}},
    report=InstallReport(
        device="dev-1", revision=6, digest=None, phase="idle", outcome="succeeded", active=None
    ),
    pinned="best",
)
SPEECH = ModelRecord(
    revision=5, target=SPEECH_PACKAGE.ref, latencies_ms={"b" * 64: {"best": 3.0}}, rollout="r2"
)
WHOLE = AgentState(revision=7, desired=ENVELOPE, models={"digits": DIGITS, "speech": SPEECH})
DAMAGE = {
    "empty": b"",
    "cut": b'{"schema_version":2,"revi',
    "list": b"[]",
    "unknown": b'{"schema_version": 3}',
    "zeroes": b"\x00" * 100,
    "no checksum": b'{"revision": 3}',
    "long": b" " * (MAX_STATE_BYTES + 1),
}


def fill(directory: Path) -> None:
    """Save the records of a device with two models that accepted revision 7."""
    store = FileStateStore(directory)
    store.accept(WHOLE.revision, WHOLE.desired)
    for name, record in WHOLE.models.items():
        store.update_model(name, **fields(record))


def fields(record: ModelRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ModelRecord.__struct_fields__}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the directory of a device that accepted revision 7."""
    fill(tmp_path)
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
    kept = ("previous", "dropped", "latencies_ms", "agreements", "pinned")
    models = {
        name: ModelRecord(**{key: getattr(record, key) for key in kept})
        for name, record in WHOLE.models.items()
    }
    assert store.state == AgentState(desired=ENVELOPE, models=models)
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
    accepted = FileStateStore(home).accept(5, b"next")
    again = FileStateStore(home)
    assert (again.state, again.floor, again.lost) == (accepted, 5, False)


def test_records_that_were_put_back_are_not_believed(home: Path) -> None:
    old = {name: (home / name).read_bytes() for name in RECORDS}
    store = FileStateStore(home)
    store.accept(8, b"eight")
    store.update_model("digits", pinned=None)
    store.accept(10, b"ten")
    store.update_model("digits", pinned="small")
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
    FileStateStore(home).accept(10, b"ten")
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
        {"target": msgspec.structs.replace(two_variants("1.0.0").ref, name="../../x")},
    ],
    ids=["previous", "target", "envelope", "name"],
)
@pytest.mark.parametrize("model", ["digits", "speech", "another"])
def test_a_record_that_could_lead_to_another_place_is_damage(
    home: Path, model: str, changes: dict[str, object]
) -> None:
    FileStateStore(home).update_model(model, **changes)
    check_nothing_is_believed(home)


def test_a_record_of_what_is_no_name_of_a_model_is_damage(home: Path) -> None:
    FileStateStore(home).update_model("../../x", pinned="best")
    check_nothing_is_believed(home)


def check_nothing_is_believed(home: Path) -> None:
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
    changed = FileStateStore(home)
    changed.accept(8, b"eight")
    changed.update_model("digits", pinned="small")
    (home / name).write_bytes(old)
    for _ in range(2):
        store = FileStateStore(home)
        assert (store.state, store.floor) == (changed.state, 8)


@pytest.mark.parametrize("content", [b"\x00", None], ids=["damaged", "missing"])
def test_without_a_record_the_floor_stays(home: Path, content: bytes | None) -> None:
    for name in (STATE_FILE, COPY_FILE):
        (home / name).unlink() if content is None else (home / name).write_bytes(content)
    for number in range(3):
        store = FileStateStore(home, used=True)
        assert (store.state.revision, store.floor, store.lost) == (0, 7, True)
        store.update_model("digits", pinned=f"variant {number}")
    store = FileStateStore(home)
    store.accept(7, ENVELOPE)
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
    store.accept(2**63 - 1, ENVELOPE)
    again = FileStateStore(home)
    assert (again.state.revision, again.floor, again.lost) == (0, 0, True)
    again.accept(MAX_REVISION, ENVELOPE)
    assert FileStateStore(home).floor == MAX_REVISION


def test_the_floor_goes_down_with_the_desired_state_that_was_accepted(home: Path) -> None:
    FileStateStore(home).accept(3, b"three")
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
        store.accept(8, b"next")
    again = FileStateStore(home)
    assert again.state.models == WHOLE.models
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
        FileStateStore(tmp_path, write=write).accept(1, b"first")
    store = FileStateStore(tmp_path)
    assert (store.state, store.floor, store.lost, store.faults) == (AgentState(), 1, False, ())


def test_progress_alone_is_not_written_twice(home: Path) -> None:
    written: list[str] = []

    def write(path: Path, content: bytes) -> None:
        written.append(path.name)
        write_atomic(path, content)

    store = FileStateStore(home, write=write)
    assert written == []
    store.update_model("digits", state=State.VERIFYING, attempts=1)
    assert written == [STATE_FILE]
    store.update_model("digits", pinned="small")
    assert written[1:] == [COPY_FILE, STATE_FILE]
    store.accept(8, b"eight")
    assert written[3:] == [FLOOR_FILE, COPY_FILE, STATE_FILE, FLOOR_FILE]
    store.accept(8, b"eight")
    store.update_model("digits", pinned="small")
    assert len(written) == 7


def records_in(path: Path) -> dict[str, msgspec.Raw]:
    """Return the bytes of the record of each model in a file."""

    class File(msgspec.Struct):
        models: dict[str, msgspec.Raw]

    return msgspec.json.decode(path.read_bytes(), type=File).models


@pytest.mark.parametrize("name", RECORDS)
def test_a_change_of_one_model_leaves_every_byte_of_the_other(home: Path, name: str) -> None:
    before = records_in(home / name)
    store = FileStateStore(home)
    store.update_model("digits", state=State.IDLE, pinned=None, revision=9)
    after = records_in(home / name)
    assert bytes(after["digits"]) != bytes(before["digits"])
    assert bytes(after["speech"]) == bytes(before["speech"])
    store.forget("digits")
    assert set(records_in(home / name)) == {"speech"}
    assert bytes(records_in(home / name)["speech"]) == bytes(before["speech"])


def test_a_model_that_was_forgotten_is_not_known_after_a_restart(home: Path) -> None:
    store = FileStateStore(home)
    store.forget("digits")
    store.forget("digits")
    assert FileStateStore(home).state == AgentState(
        revision=7, desired=ENVELOPE, models={"speech": SPEECH}
    )


def test_one_floor_holds_for_all_models(home: Path) -> None:
    store = FileStateStore(home)
    store.update_model("speech", revision=12)
    assert FileStateStore(home).floor == 7, "it is that of the desired state"
    store.accept(13, b"next")
    again = FileStateStore(home)
    assert {name: record.revision for name, record in again.state.models.items()} == {
        "digits": 7,
        "speech": 12,
    }
    assert again.floor == 13


def test_what_a_model_needs_is_needed_whatever_the_others_do(home: Path) -> None:
    store = FileStateStore(home)
    digits, speech = ModelStore(store, "digits"), ModelStore(store, "speech")
    both = {two_variants("1.0.0").ref.digest, "a" * 64, SPEECH_PACKAGE.digest}
    assert digits.kept == speech.kept == both
    assert digits.kept_elsewhere == {SPEECH_PACKAGE.digest}
    assert speech.kept_elsewhere == both - {SPEECH_PACKAGE.digest}
    assert (digits.is_alone, speech.is_alone) == (True, False), "that of digits is under way"
    digits.forget()
    assert digits.state == ModelRecord()
    assert speech.kept == {SPEECH_PACKAGE.digest}
    assert speech.is_alone
    assert ModelStore(FileStateStore(home), "speech").state == SPEECH


KEYS = ("digits", "speech", "faces")
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "revision": st.integers(1, 20),
        "state": st.sampled_from([State.IDLE, State.FETCHING]),
        "attempts": st.integers(0, 5),
        "pinned": st.sampled_from([None, "best"]),
        "previous": st.sampled_from([None, "a" * 64]),
        "dropped": st.sampled_from([{}, {"a" * 64: {"small": "fails"}}]),
    },
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("accept"), st.integers(1, 20), st.binary(max_size=4)),
        st.tuples(st.just("update"), st.sampled_from(KEYS), CHANGES),
        st.tuples(st.just("forget"), st.sampled_from(KEYS), st.none()),
        st.tuples(st.just("damage"), st.sampled_from(FILES), st.sampled_from([b"", b"\0", None])),
        st.tuples(st.just("start"), st.none(), st.none()),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(STEPS)
def test_whatever_is_saved_and_whichever_file_is_damaged_every_model_has_its_record(
    steps: list[tuple[str, Any, Any]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        store = FileStateStore(home)
        for kind, key, value in steps:
            expected = store.state
            if kind == "accept":
                store.accept(key, value)
                expected = msgspec.structs.replace(expected, revision=key, desired=value)
            elif kind == "update":
                store.update_model(key, **value)
                record = msgspec.structs.replace(expected.models.get(key, ModelRecord()), **value)
                models = {**expected.models, key: record}
                expected = msgspec.structs.replace(expected, models=models)
            elif kind == "forget":
                store.forget(key)
                models = {name: r for name, r in expected.models.items() if name != key}
                expected = msgspec.structs.replace(expected, models=models)
            else:
                if kind == "damage" and (home / key).exists():
                    (home / key).unlink() if value is None else (home / key).write_bytes(value)
                store = FileStateStore(home)
                expected = after_damage(expected, key if kind == "damage" else None)
                if key == STATE_FILE:  # the copy lacks the progress of the installs
                    assert lasting(store.state) == lasting(expected)
                    continue
            assert store.state == expected


def after_damage(state: AgentState, name: str | None) -> AgentState:
    """Return what is left after a start; without its floor a record may be an old one."""
    return remnant(state) if name == FLOOR_FILE and state.revision > 0 else state


def test_an_agent_with_one_model_sees_that_the_record_is_not_for_it_and_keeps_the_floor(
    home: Path,
) -> None:
    class Seen(msgspec.Struct):
        schema_version: int

    for name in RECORDS:
        read = from_json((home / name).read_bytes(), Seen, limit_bytes=MAX_STATE_BYTES)
        assert read.schema_version == 2
    floor = from_json((home / FLOOR_FILE).read_bytes(), Floor, limit_bytes=MAX_STATE_BYTES)
    assert (floor.schema_version, floor.revision) == (1, 7)


@pytest.mark.parametrize("name", [*FILES, *(f".{name}.new" for name in FILES)])
def test_a_directory_in_the_place_of_a_file_is_moved_aside(home: Path, name: str) -> None:
    store = FileStateStore(home)
    for number in range(2):
        (home / name).unlink(missing_ok=True)
        (home / name).mkdir()
        (home / name / "filler").touch()
        store.accept(20 + number, b"next")
        store.update_model("digits", pinned=f"variant {number}")
    again = FileStateStore(home)
    assert (again.state, again.floor) == (store.state, 21)
    assert again.state.models["digits"].pinned == "variant 1"
    assert again.faults == ()


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_is_damage(home: Path, name: str) -> None:
    (home / name).unlink()
    os.mkfifo(home / name)
    os.mkfifo(home / f".{name}.new")
    store = FileStateStore(home)
    assert f"{name}" in store.faults[0]
    assert store.lost == (name == FLOOR_FILE)
    store.accept(20, b"twenty")
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
    store.accept(1, b"first")
    before = store.update_model("speech", pinned="best")
    with pytest.raises(StorageError):
        store.accept(1, b"x" * 5000)
    with pytest.raises(StorageError):
        store.update_model("digits", rollout="x" * 5000)
    assert store.state == before
    assert FileStateStore(tmp_path).state == before
