"""An update while the storage refuses a write, in a process whose every write can be refused.

Here a sample is tried. `tests/simulators/storage_sweep.py` without a number of samples tries all
writes in all ways, in some minutes.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.simulators.failing_storage import COMPILER, build, preloaded

SAMPLES = 3
"""Places for each of the ways in which storage fails, for each story."""


MEMORY = Path("/dev/shm")  # noqa: S108 - a place, not a name in it


@pytest.mark.skipif(COMPILER is None, reason="no gcc, which compiles what refuses writes")
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
