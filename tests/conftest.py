"""What holds for all tests."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.thorough import EXAMPLES, THOROUGH

MEMORY_FILES = Path("/dev/shm")  # noqa: S108 - as Linux names it; a folder below it is made
ROOM_BYTES = 4 * 2**30
FREE_MEMORY_BYTES = 8 * 2**30
ONE_OF = 4
"""Of the flows (the marker `flow`) every run takes one of so many on PostgreSQL, and all on SQLite:
they speak to the same stores, each of which has tests of its own on both."""


def _has_room(folder: Path) -> bool:
    """Whether files of the tests may lie in memory: there is much of it, and programs run there."""
    try:
        found = os.statvfs(folder)
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        return False
    kib = {line.split(":")[0]: line.split()[1] for line in meminfo.splitlines()}
    return (
        os.access(folder, os.W_OK)
        and not found.f_flag & os.ST_NOEXEC
        and found.f_bavail * found.f_frsize >= ROOM_BYTES
        and int(kib.get("MemAvailable", 0)) * 1024 >= FREE_MEMORY_BYTES
    )


# The workers of a run share the processors: threads that spin while they wait for each other take
# time from tests beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What is written and synchronized to a disk is most of what tests wait for. Whoever names a folder
# himself gets it.
if "TMPDIR" not in os.environ and _has_room(MEMORY_FILES):
    os.environ["TMPDIR"] = str(MEMORY_FILES)
    tempfile.tempdir = None

# Machines are noisy: that a test is slow is no fault of what it tests.
settings.register_profile("edgefleet", deadline=None, max_examples=EXAMPLES)
settings.load_profile("edgefleet")

# A shell that starts the tests in the background has them, and all that they start, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only thorough runs take."""
    if THOROUGH:
        return
    postgres = [item for item in items if _is_flow_on_postgres(item)]
    left_out = {item for item in items if item.get_closest_marker("thorough")}
    left_out |= {item for at, item in enumerate(postgres) if at % ONE_OF}
    left_out |= _beyond_few([item for item in items if item not in left_out])
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_flow_on_postgres(item: pytest.Item) -> bool:
    if item.get_closest_marker("flow") is None or not isinstance(item, pytest.Function):
        return False
    # By its name: what a test is given may be anything, such as arrays, which are not compared.
    return "postgresql" in item.name


def _beyond_few(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cases that are left out of tests with the marker `few`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for alike in cases.values():
        mark = alike[0].get_closest_marker("few")
        assert mark is not None
        (most,) = mark.args
        if most < len(alike):
            taken = {at * len(alike) // most for at in range(most)}
            left_out |= {item for at, item in enumerate(alike) if at not in taken}
    return left_out


@pytest.fixture(autouse=True)
def _commands_remember_nothing_of_a_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Which metadata a user has seen lies below his home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was() -> Iterator[None]:
    """A test that silences loggers would hide from later ones what they look for."""
    # pytest attaches its handlers to loggers that do not propagate, too. NNCF's is one, and NNCF
    # gives all handlers of its logger the level of errors.
    for handler in logging.root.handlers:
        handler.setLevel(logging.NOTSET)
    before = _silenced()
    yield
    assert _silenced() == before, "this test changed the logging of its process"


def _silenced() -> tuple[int, int, set[str]]:
    loggers = logging.root.manager.loggerDict.items()
    shut = {
        name for name, logger in loggers if isinstance(logger, logging.Logger) and _is_shut(logger)
    }
    # A program that a test runs in this process may say more, but not less.
    level = max(logging.root.level, logging.WARNING)
    return logging.root.manager.disable, level, shut


def _is_shut(logger: logging.Logger) -> bool:
    ours = logger.name.partition(".")[0] in {"agent", "controller", "packager", "telemetry", "wire"}
    return ours and (logger.disabled or not logger.propagate or logger.level > logging.WARNING)
