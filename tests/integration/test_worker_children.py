"""Processes that a worker's runtime starts end with the worker, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.serve.errors import WorkerError
from agent.serve.frames import ModelIdentity
from agent.serve.settings import WorkerLimits
from agent.serve.worker_process import WorkerProcess
from tests.integration.test_workers import infer, is_gone
from tests.simulators.packages import package, variant
from tests.simulators.patience import PATIENCE_S, until

FORKING = """
import os, signal, sys
if "agent.serve.worker.process" in sys.orig_argv and os.fork() == 0:
    with open(os.path.join(os.path.dirname(__file__), "children"), "a") as children:
        print(os.getpid(), file=children)
    signal.pause()
"""
"""Every worker runs this as its interpreter starts, as a runtime's native code may."""

SUPERVISOR = """
import sys, threading
from pathlib import Path
from tests.integration.test_worker_children import started

worker = started(Path(sys.argv[1]))
print(worker.pid, flush=True)
threading.Event().wait()
"""


def started(directory: Path) -> WorkerProcess:
    return WorkerProcess.start(
        directory,
        variant("a"),
        model=ModelIdentity(name="digits", version="1.0"),
        limits=WorkerLimits(),
        timeout_s=PATIENCE_S,
    )


def children(directory: Path) -> list[int]:
    file = directory / "site/children"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def forking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a package whose workers start a process each."""
    package("1.0", [(variant("a"), b"{}")]).write_to(tmp_path)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(FORKING)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{site}:{root}")
    yield tmp_path
    for pid in children(tmp_path):
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


def test_they_end_when_the_worker_is_stopped(forking: Path) -> None:
    worker = started(forking)
    (child,) = until(lambda: children(forking), "the child")
    assert not is_gone(child)
    worker.stop()
    until(lambda: is_gone(child), "its end")
    worker.stop()


def test_they_end_when_the_worker_has_crashed(forking: Path) -> None:
    worker = started(forking)
    (child,) = until(lambda: children(forking), "the child")
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: not worker.is_alive, "the end of the worker")
    with pytest.raises(WorkerError):
        infer(worker, timeout_s=1.0)
    until(lambda: is_gone(child), "its end")
    worker.stop()


def test_they_end_with_a_killed_supervisor(forking: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(forking)], stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None
        worker = int(supervisor.stdout.readline())
        (child,) = until(lambda: children(forking), "the child")
        assert not is_gone(child)
        supervisor.kill()
        until(lambda: is_gone(worker) and is_gone(child), "the end of both")


def test_a_worker_is_in_no_group_of_its_supervisor(forking: Path) -> None:
    worker = started(forking)
    assert os.getpgid(worker.pid) == worker.pid
    assert os.getsid(worker.pid) != os.getsid(0)
    worker.stop()
