"""Durable requests on the disk: what a crash leaves at each step, and what damage costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import StorageError
from agent.serve.deferred.store import DeferredStore, Kept, StoredAnswer, StoredRequest
from tests.simulators.device import Heard
from tests.simulators.patience import PATIENCE_S

TICKET = "0123456789abcdef" * 2
REQUEST = StoredRequest(
    model="digits", version=None, header_length=3, body=memoryview(b"{}x"), came_s=5.0,
    expires_s=9.0,
)  # fmt: skip
ANSWER = StoredAnswer(status=200, headers={"A": "b"}, body=memoryview(b"answer"), at_s=7.0)
WAITS = {begun: Kept(id=TICKET, begun=begun, size_bytes=3, came_s=5.0, expires_s=9.0)
         for begun in (0, 1)}  # fmt: skip
ANSWERED = Kept(id=TICKET, begun=0, size_bytes=6, came_s=7.0, answered=True)

STEPS = {
    "accept": ("store.save_request(TICKET, REQUEST)", None, WAITS[0]),
    "begin": ("store.count(TICKET, 0, 1)", WAITS[0], WAITS[1]),
    "answer": ("store.save_answer(TICKET, ANSWER, 0)", WAITS[0], ANSWERED),
    "forget": ("store.remove(TICKET, 0)", ANSWERED, None),
    "forget both": ("store.remove(TICKET, 0)", ANSWERED, None),
}
"""What a step does, what is there before it, and what is there after it."""

PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.unit.agent.serve.deferred.test_store import *

place, at = Path(sys.argv[1]), int(sys.argv[2])
seen = 0

def watch(event, arguments):
    # Each call that changes the directory is a step; the process is killed before it.
    global seen
    changes = event in {"os.rename", "os.remove", "os.mkdir"} or (
        event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    )
    if changes and str(arguments[0]).startswith(str(place)):
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)

store = DeferredStore(place, 1000, Heard([], []))
sys.addaudithook(watch)
"""


def store_at(place: Path, heard: Heard | None = None) -> DeferredStore:
    return DeferredStore(place, 1000, heard or Heard([], []))


def prepare(place: Path, before: Kept | None, *, both: bool = False) -> None:
    store = store_at(place)
    if before is not None:
        store.save_request(TICKET, REQUEST)
        if before.answered:
            store.save_answer(TICKET, ANSWER, 0)
    if both:  # as if the agent had ended between the two
        store.save_request(TICKET, REQUEST)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_before_each_change_leaves_what_was_or_what_will_be(
    step: str, tmp_path: Path
) -> None:
    code, before, after = STEPS[step]
    found, killed = list[Kept | None](), 0
    for at in range(1, 20):
        place = tmp_path / str(at) / "deferred"
        place.parent.mkdir()
        prepare(place, before, both=step.endswith("both"))
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM + code, place, str(at)],
            cwd=Path(__file__).parents[5], env={"PYTHONPATH": str(Path(__file__).parents[5])},
            capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        heard = Heard([], [])
        store = store_at(place, heard)
        kept = store.load()
        found.append(kept[0] if kept else None)
        assert heard.events == []
        assert kept == store.load(), "a second look finds the same"
        if kept and kept[0].answered:
            assert store.read_answer(TICKET) == ANSWER
            assert len(list(place.iterdir())) == 1, "the request is gone"
        elif kept:
            assert store.read_request(TICKET, kept[0].begun) == REQUEST
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr.decode()
        killed += 1
    assert killed > 0
    assert found[0] == before
    assert found[-1] == after
    assert all(kept in (before, after) for kept in found), "never anything between"
    # Once the change has taken effect it stays.
    assert found == sorted(found, key=lambda kept: kept != before)


def test_files_are_for_the_agent_alone(tmp_path: Path) -> None:
    place = tmp_path / "deferred"
    prepare(place, WAITS[0])
    assert place.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in place.iterdir()] == [0o600]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), flip=st.integers(1, 255), cut=st.booleans())
def test_damage_is_one_event_and_the_file_is_gone(
    tmp_path: Path, at: int, flip: int, cut: bool
) -> None:
    place = tmp_path / "deferred"
    store_at(place).save_request(TICKET, REQUEST)
    (file,) = place.iterdir()
    content = bytearray(file.read_bytes())
    at %= len(content)
    content[at] ^= flip
    file.write_bytes(content[:at] if cut else content)
    heard = Heard([], [])
    assert store_at(place, heard).load() == []
    ((kind, reason, _),) = heard.events
    assert kind == "storage"
    assert "a deferred request is lost" in reason
    assert list(place.iterdir()) == []


def test_an_answer_that_is_damaged_is_computed_again_if_its_request_is_there(
    tmp_path: Path,
) -> None:
    prepare(tmp_path, ANSWERED)
    store_at(tmp_path).save_request(TICKET, REQUEST)
    (tmp_path / f"{TICKET}.answer").write_bytes(b"x" * 100)
    heard = Heard([], [])
    assert store_at(tmp_path, heard).load() == [WAITS[0]]
    assert len(heard.events) == 1


def test_what_cannot_be_read_is_said_and_hides_nothing_else(tmp_path: Path) -> None:
    prepare(tmp_path, WAITS[0])
    (tmp_path / ("f" * 32 + ".answer")).mkdir()
    heard = Heard([], [])
    assert store_at(tmp_path, heard).load() == [WAITS[0]]
    ((kind, reason, _),) = heard.events
    assert (kind, "cannot read a deferred answer" in reason) == ("storage", True)


@pytest.mark.parametrize("name", [f".{'e' * 32}.answer.new", f"{TICKET}.request-1"])
def test_what_a_crash_left_and_cannot_be_removed_hides_nothing_else(
    tmp_path: Path, name: str
) -> None:
    # As on a disk that became read-only after the crash.
    prepare(tmp_path, WAITS[0])
    (tmp_path / name).mkdir()
    heard = Heard([], [])
    assert store_at(tmp_path, heard).load() == [WAITS[0]]
    ((kind, reason, _),) = heard.events
    assert (kind, "cannot remove" in reason) == ("storage", True)


FAULT = """
def refuse(event, arguments):
    if event == "open" and arguments[2] & os.O_DIRECTORY and str(arguments[0]) == str(place):
        raise OSError(errno.EIO, "input/output error")

import errno
store = DeferredStore(place, 1000, Heard([], []))
sys.addaudithook(refuse)
try:
    store.save_request(TICKET, REQUEST)
except StorageError:
    sys.exit(7)
"""


def run_program(code: str, place: Path) -> subprocess.CompletedProcess[bytes]:
    """Run code at a place, in a process of its own."""
    root = Path(__file__).parents[5]
    return subprocess.run(
        [sys.executable, "-P", "-c", code, place, "0"],
        cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip


def test_a_request_that_was_refused_since_it_is_not_durable_never_runs(tmp_path: Path) -> None:
    place = tmp_path / "deferred"
    done = run_program(PROGRAM + FAULT, place)
    assert done.returncode == 7, done.stderr.decode()
    assert store_at(place).load() == []
    assert list(place.iterdir()) == []


ORDER = """
told = []

def listen(event, arguments):
    if event == "os.mkdir" or (event == "open" and arguments[2] & os.O_DIRECTORY):
        told.append((event, str(arguments[0])))

store = DeferredStore(place, 1000, Heard([], []))
sys.addaudithook(listen)
store.save_request(TICKET, REQUEST)
print(*(f"{event} {name}" for event, name in told), sep="\\n")
"""


def test_a_new_directory_is_durable_before_the_request_in_it(tmp_path: Path) -> None:
    place = tmp_path / "deferred"
    told = run_program(PROGRAM + ORDER, place).stdout.decode().splitlines()
    assert told == [f"os.mkdir {place}", f"open {tmp_path}", f"open {place}"]


def test_what_is_longer_than_allowed_is_not_read(tmp_path: Path) -> None:
    prepare(tmp_path, WAITS[0])
    with (tmp_path / f"{TICKET}.request-0").open("ab") as file:
        file.truncate(10 * 1024**2)
    heard = Heard([], [])
    with pytest.raises(StorageError, match="longer than"):
        store_at(tmp_path, heard).read_request(TICKET, 0)
    assert len(heard.events) == 1


def test_strangers_among_the_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "x.answer").mkdir()
    assert store_at(tmp_path).load() == []
    assert len(list(tmp_path.iterdir())) == 2
    assert store_at(tmp_path / "nowhere").load() == []


def test_a_disk_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "deferred").write_text("a file where the directory should be")
    with pytest.raises(StorageError, match="cannot keep the request"):
        store_at(tmp_path / "deferred").save_request(TICKET, REQUEST)
