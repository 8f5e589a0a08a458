"""A device's trust passes tuf-conformance, the TUF project's suite for clients.

It runs where a checkout of the suite is named:

    git clone https://github.com/theupdateframework/tuf-conformance
    EDGEFLEET_TUF_CONFORMANCE=tuf-conformance pytest tests/contract/test_tuf_conformance.py

Rules:
- `tuf_suite/client.py.xfails` lists by name where a device differs, and why. The suite is strict
  about it: a test in that list that passes is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = "EDGEFLEET_TUF_CONFORMANCE"
ROOT = Path(__file__).resolve().parents[2]
CLIENT = Path(__file__).parent / "tuf_suite" / "client.py"


@pytest.mark.timeout(3 * 3600)
@pytest.mark.skipif(CHECKOUT not in os.environ, reason=f"{CHECKOUT} names no checkout of the suite")
@pytest.mark.skipif(shutil.which("faketime") is None, reason="needs faketime: apt-get install it")
def test_a_device_differs_from_other_clients_only_where_it_means_to() -> None:
    suite = Path(os.environ[CHECKOUT]).resolve()
    environment = os.environ | {
        # The first line of the client asks it for Python.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{suite}",
    }
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", suite),
            *("-p", "tests.contract.tuf_suite.fleet", "-p", "no:cacheprovider"),
            *("--entrypoint", CLIENT, suite / "tuf_conformance"),
        ],
        cwd=suite,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
