"""An update while the storage refuses a write, in a process whose every write can be refused.

Here a sample is tried. `tests/simulators/storage_sweep.py` without a number of samples tries all
writes in all ways, in some minutes.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.simulators.agent_process import Controller, Device, bring_to_serve, null_package
from tests.simulators.failing_storage import COMPILER, Refusal, build, preloaded
from tests.simulators.patience import until
from wire.installs import InstallReport

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no gcc, which compiles what refuses")

SECOND = null_package("2.0.0", padding_bytes=4_000_000)
SAMPLES = 3
"""Places for each of the ways in which storage fails, for each story."""


MEMORY = Path("/dev/shm")  # noqa: S108 - a place, not a name in it


def test_an_update_during_which_any_write_fails_leaves_the_old_release_or_the_new_one(
    tmp_path: Path,
) -> None:
    library, seed = build(tmp_path), random.randrange(2**31)
    # What fails does not depend on the disk, and thousands of flushes to a real one take long.
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as place:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tests.simulators.storage_sweep",
             place, str(SAMPLES), str(seed)],
            env=preloaded(library), capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.count("faults tried") == 2


class Switch:
    """Storage below a directory that can be written while a file is there."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag
        self.is_writable(is_so=True)

    def is_writable(self, *, is_so: bool) -> None:
        """Let writes succeed from now on, or fail."""
        if is_so:
            self.flag.touch()
        else:
            self.flag.unlink()


@pytest.fixture(
    params=[
        pytest.param(errno.EROFS, id="read-only", marks=pytest.mark.thorough),
        pytest.param(errno.ENOSPC, id="full"),
    ]
)
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, device: Device, controller: Controller
) -> Switch:
    """Return the storage of a device that serves the first package, and may be refused writes."""
    switch = Switch(tmp_path / "writable")
    device.config.state_dir.mkdir()
    refusal = Refusal(first=1, error=request.param, stays=True)
    variables = preloaded(build(tmp_path), device.config.state_dir, refusal, switch.flag)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        bring_to_serve(device, controller)
    return switch


def told(device: Device, controller: Controller, revision: int) -> list[str]:
    """Return what was said of an order that could not be followed, here and to the controller."""
    reports = controller.all("report", InstallReport)
    here = [line["detail"] for line in device.log if line["action"] == "install-waits"]
    return here + [r.detail for r in reports if r.revision == revision and r.outcome == "failed"]


def takes_the_release_afterwards(device: Device, controller: Controller) -> None:
    """Check that what was said names the storage, and that the release is taken in the end."""
    controller.desire(3, SECOND)
    assert controller.outcome(3).outcome == "succeeded"
    assert device.infer()[0]["release"] == "digits:2.0.0"
    assert device.end(signal.SIGTERM) == 0
    left = {path.name for path in (device.config.state_dir / "packages").iterdir()}
    assert SECOND.digest in left
    assert not list((device.config.state_dir / "incoming").iterdir())
    assert not list((device.config.state_dir / "parts").iterdir())


@pytest.mark.broker
def test_storage_that_refuses_writes_from_now_on_ends_no_service_and_loses_no_later_order(
    device: Device, controller: Controller, storage: Switch
) -> None:
    storage.is_writable(is_so=False)
    controller.desire(2, SECOND)
    said = until(lambda: told(device, controller, 2), "what is missing")
    assert "read-only" in said[0] or "no space left" in said[0]
    assert device.infer()[0]["release"] == "digits:1.0.0"
    controller.event("storage", lambda e: "telemetry is kept in memory" in e.reason)
    storage.is_writable(is_so=True)
    takes_the_release_afterwards(device, controller)


@pytest.mark.broker
def test_storage_that_refuses_writes_during_an_install_leaves_the_old_release_in_service(
    device: Device, controller: Controller, storage: Switch
) -> None:
    def fetches() -> bool:
        return any(
            report.revision == 2 and report.phase == "fetching"
            for report in controller.all("report", InstallReport)
        )

    controller.desire(2, SECOND)
    until(fetches, "a transfer")
    storage.is_writable(is_so=False)
    said = until(lambda: told(device, controller, 2), "what is missing")
    assert any("read-only" in line or "no space left" in line for line in said)
    assert device.infer()[0]["release"] == "digits:1.0.0"
    storage.is_writable(is_so=True)
    takes_the_release_afterwards(device, controller)
