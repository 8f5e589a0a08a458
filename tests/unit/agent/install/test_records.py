"""The records of the models: what they tell, and those of agents that had one model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.install.records import (
    AgentState,
    Failure,
    ModelRecord,
    has_served,
    lasting,
    newest,
    outcome_of,
    remnant,
)
from agent.install.states import State
from agent.install.store import COPY_FILE, FLOOR_FILE, STATE_FILE, FileStateStore
from wire.desired import ModelState
from wire.installs import InstallReport, ReleaseRef

RECORDS = (STATE_FILE, COPY_FILE)
FILES = (*RECORDS, FLOOR_FILE)
ENVELOPE = b"\x00\xffenvelope"


def release(digest: str, name: str = "digits") -> ReleaseRef:
    return ReleaseRef(
        name=name,
        version="1.0.0",
        digest=digest * 64,
        envelope_sha256="e" * 64,
        envelope_size_bytes=321,
    )


def report(revision: int, **changes: Any) -> InstallReport:
    said = InstallReport(
        device="dev-1",
        revision=revision,
        digest=None,
        phase="idle",
        outcome="succeeded",
        active=None,
    )
    return msgspec.structs.replace(said, **changes)


def test_what_any_model_brings_or_may_return_to_is_wanted() -> None:
    state = AgentState(
        models={
            "digits": ModelRecord(target=release("1"), previous="2" * 64),
            "speech": ModelRecord(target=release("3", "speech")),
            "faces": ModelRecord(previous="4" * 64),
            "new": ModelRecord(),
        }
    )
    assert state.wanted == {digit * 64 for digit in "1234"}
    assert AgentState().wanted == set()


def test_of_two_records_the_newer_counts_and_of_equal_ones_the_first() -> None:
    first, second = AgentState(revision=3, desired=b"1"), AgentState(revision=3, desired=b"2")
    assert newest([None, first, second]) is first
    assert newest([first, AgentState(revision=4), None]).revision == 4
    assert newest([None, None]) == AgentState()


def test_progress_of_every_model_does_not_last_and_all_else_does() -> None:
    record = ModelRecord(revision=3, target=release("1"), rollout="r", pinned="best")
    busy = msgspec.structs.replace(record, state=State.FETCHING, attempts=3, delayed_s=4.0)
    state = AgentState(revision=3, models={"digits": busy, "speech": busy})
    assert lasting(state) == AgentState(revision=3, models={"digits": record, "speech": record})


def test_a_remnant_begins_nothing_in_any_model() -> None:
    busy = ModelRecord(
        revision=3,
        state=State.FETCHING,
        target=release("1"),
        rollout="r",
        previous="2" * 64,
        repairing=True,
        report=report(3),
        pinned="best",
    )
    left = remnant(AgentState(revision=3, models={"digits": busy, "speech": busy}))
    kept = ModelRecord(previous="2" * 64, pinned="best")
    assert left == AgentState(models={"digits": kept, "speech": kept})
    assert not any(has_served(record) for record in left.models.values())


SERVED = ModelRecord(
    revision=3, target=release("1"), rollout="r1", report=report(3, digest="1" * 64)
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"report": None}, False),
        ({"target": None}, False),
        ({"target": release("2")}, False),
        ({"report": report(3, digest="1" * 64, outcome="failed")}, False),
        ({"report": report(3, digest="1" * 64, outcome="failed"), "repairing": True}, True),
    ],
)
def test_a_release_has_served_if_its_install_ended_well(
    changes: dict[str, Any], *, expected: bool
) -> None:
    assert has_served(msgspec.structs.replace(SERVED, **changes)) is expected


DESIRED = ModelState(name="digits", revision=3, release=release("1"), rollout="r1")


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, True),
        ({"revision": 4}, True),  # another policy
        ({"revision": 4, "rollout": "r2"}, False),
        ({"revision": 4, "rollout": None}, False),
        ({"revision": 4, "release": release("2")}, False),
    ],
)
def test_the_outcome_of_the_same_install_is_known(changes: dict[str, Any], *, known: bool) -> None:
    desired = msgspec.structs.replace(DESIRED, **changes)
    assert outcome_of(SERVED, desired) == (SERVED.report if known else None)
    begun = msgspec.structs.replace(SERVED, revision=5)
    assert outcome_of(begun, desired) is None, "that report is of an earlier install"


OLD_RECORDS = Path(__file__).parents[3] / "data" / "one-model-records"
OLD_DIGITS = ModelRecord(
    revision=7,
    state=State.FETCHING,
    attempts=2,
    delayed_s=1.5,
    target=release("d"),
    rollout="r1",
    has_sources=True,
    previous="a" * 64,
    failure=Failure(phase=State.PROBING, code="agent.golden", detail="no"),
    dropped={"a" * 64: {"small": "fails"}},
    latencies_ms={"a" * 64: {"best": 12.5}},
    report=report(6),
    pinned="best",
)
OLD_WHOLE = AgentState(revision=7, desired=ENVELOPE, models={"digits": OLD_DIGITS})


def left_by_old_agent(directory: Path, which: str) -> Path:
    """Put into a directory what an agent with one model left there."""
    for path in (OLD_RECORDS / which).iterdir():
        shutil.copy(path, directory)
    return directory


@pytest.mark.parametrize("served", ["digits", None, "speech"])
@pytest.mark.parametrize("lost", [None, *RECORDS])
def test_the_record_of_an_agent_with_one_model_becomes_that_of_its_target(
    tmp_path: Path, served: str | None, lost: str | None
) -> None:
    left_by_old_agent(tmp_path, "target")
    if lost is not None:
        (tmp_path / lost).unlink()
    store = FileStateStore(tmp_path, used=True, served=served)
    assert (store.state, store.floor, store.lost, store.faults) == (OLD_WHOLE, 7, False, ())
    store.update_model("speech", revision=8, pinned="best")
    again = FileStateStore(tmp_path)
    assert again.state.models == {
        "digits": OLD_DIGITS,
        "speech": ModelRecord(revision=8, pinned="best"),
    }
    assert (again.floor, again.lost, again.faults) == (7, False, ())


@pytest.mark.parametrize("served", ["digits", None])
def test_without_a_target_it_becomes_that_of_the_model_that_served(
    tmp_path: Path, served: str | None
) -> None:
    left_by_old_agent(tmp_path, "no-target")
    store = FileStateStore(tmp_path, used=True, served=served)
    record = msgspec.structs.replace(
        OLD_DIGITS, state=State.IDLE, attempts=0, target=None, rollout=None, failure=None
    )
    models = {} if served is None else {served: record}
    assert store.state == AgentState(revision=7, desired=ENVELOPE, models=models)
    assert (store.floor, store.lost, store.faults) == (7, False, ())
    again = FileStateStore(tmp_path, used=True)
    assert again.state == store.state, "its slot is adopted now, so nobody else knows the name"
    store.accept(8, b"eight")
    assert FileStateStore(tmp_path).state == msgspec.structs.replace(
        store.state, revision=8, desired=b"eight"
    )


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_what_an_agent_with_one_model_wrote_is_seen(
    tmp_path: Path, name: str
) -> None:
    left_by_old_agent(tmp_path, "target")
    flipped = bytearray((tmp_path / name).read_bytes())
    flipped[-3] ^= 1
    (tmp_path / name).write_bytes(flipped)
    store = FileStateStore(tmp_path, used=True)
    assert name in store.faults[0]
    assert store.state == (remnant(OLD_WHOLE) if name == FLOOR_FILE else OLD_WHOLE)


def test_an_old_record_that_was_put_back_beside_a_newer_floor_is_not_believed(
    tmp_path: Path,
) -> None:
    left_by_old_agent(tmp_path, "target")
    FileStateStore(tmp_path).accept(9, b"nine")
    for name in RECORDS:
        shutil.copy(OLD_RECORDS / "target" / name, tmp_path)
    store = FileStateStore(tmp_path, used=True)
    assert (store.state, store.floor, store.lost) == (remnant(OLD_WHOLE), 9, True)


def test_the_record_of_an_agent_without_checksums_is_taken_over(tmp_path: Path) -> None:
    left_by_old_agent(tmp_path, "unsealed")
    store = FileStateStore(tmp_path, used=True)
    assert (store.state, store.floor, store.lost, store.faults) == (OLD_WHOLE, 7, False, ())
    assert FileStateStore(tmp_path).state == OLD_WHOLE
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    assert b"checksum" in (tmp_path / STATE_FILE).read_bytes()


@pytest.mark.parametrize("name", [COPY_FILE, FLOOR_FILE])
def test_a_record_without_a_checksum_beside_a_damaged_file_is_not(
    tmp_path: Path, name: str
) -> None:
    left_by_old_agent(tmp_path, "unsealed")
    (tmp_path / name).write_bytes(b"\0")
    store = FileStateStore(tmp_path, used=True)
    assert (store.state, store.lost) == (remnant(OLD_WHOLE), True)


def test_a_record_without_a_checksum_that_names_no_model_is_damage(tmp_path: Path) -> None:
    content = (OLD_RECORDS / "unsealed" / STATE_FILE).read_bytes()
    (tmp_path / STATE_FILE).write_bytes(content.replace(b'"digits"', b'"../../x"'))
    store = FileStateStore(tmp_path, used=True)
    assert (store.state, store.lost) == (AgentState(), True)


def test_what_an_agent_without_checksums_wrote_after_that_counts(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path)
    store.accept(7, ENVELOPE)
    store.update_model("digits", pinned="small")
    content = (OLD_RECORDS / "unsealed" / STATE_FILE).read_bytes()
    (tmp_path / STATE_FILE).write_bytes(content.replace(b'"revision":7', b'"revision":9', 1))
    store = FileStateStore(tmp_path)
    record = msgspec.structs.replace(OLD_DIGITS, revision=9)
    changed = AgentState(revision=9, desired=ENVELOPE, models={"digits": record})
    assert (store.state, store.floor, store.faults) == (changed, 9, ())
