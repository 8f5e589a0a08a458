"""The record of the install: saved or not saved, and moved aside where it is damaged."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import StorageError
from agent.install.states import State
from agent.install.store import AgentState, Failure, FileStateStore
from tests.simulators.packages import two_variants
from wire.messages import InstallReport

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


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = FileStateStore(tmp_path / "state.json").update(**RECORD)
    again = FileStateStore(tmp_path / "state.json")
    assert again.state == saved == AgentState(**RECORD)  # type: ignore[arg-type]  # mixed values
    assert not again.recovered


def test_a_device_without_a_record_begins_idle(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path / "state.json")
    assert store.state == AgentState()
    assert not store.recovered
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema_version": 2}', b'{"state": "flying"}', b"\x00" * 100],
    ids=["empty", "cut", "list", "newer", "unknown-state", "zeroes"],
)
def test_a_damaged_record_is_moved_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    store = FileStateStore(path)
    assert store.recovered
    assert store.state == AgentState()
    assert (tmp_path / "state.json.corrupt").read_bytes() == content
    store.update(revision=1)
    assert FileStateStore(path).state.revision == 1


def test_an_unknown_field_of_a_newer_agent_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b'{"revision": 3, "later": true}')
    assert FileStateStore(path).state.revision == 3


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
def test_a_state_that_cannot_be_saved_is_not_held_in_memory_either(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path / "state.json")
    store.update(revision=1)
    with pytest.raises(StorageError):
        store.update(desired=b"x" * 5000)
    assert store.state.desired == b""
