"""What the supervisor may load: each module is memory on every device, for as long as it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.simulators.device_environment import device_environment
from tests.simulators.patience import PATIENCE_S

LIST: Final = Path(__file__).with_name("supervisor_modules.txt")
OURS: Final = {"agent", "runtime_adapters", "telemetry", "wire"}
ADAPTERS: Final = {"installed", "runtimes"}
"""All that the supervisor needs of `runtime_adapters`."""

PROGRAM: Final = """
import sys
import agent.cli.main, agent.app.daemon
print("\\n".join(sorted(sys.modules)))
"""


def loaded() -> set[str]:
    """Return the packages and modules that a device's supervisor has loaded when it first starts.

    No bytecode is there yet: compiling may load what running does not (a character named in a
    text loads unicodedata, a mebibyte), and a device that cannot write bytecode always compiles.
    """
    with tempfile.TemporaryDirectory() as empty:
        programs = device_environment(Path(empty) / "environment")
        done = subprocess.run(
            [programs / "python", "-c", PROGRAM],
            env=os.environ | {"PYTHONPYCACHEPREFIX": f"{empty}/bytecode"},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
    return {name for name in done.stdout.split() if not name.startswith("_")}


def test_the_supervisor_loads_nothing_that_was_not_weighed() -> None:
    allowed = {line for line in LIST.read_text().splitlines() if line and line[0] != "#"}
    tops = {name.partition(".")[0] for name in loaded()}
    new = tops - OURS - allowed - {"sitecustomize", "usercustomize"}
    assert not new, f"weigh what {sorted(new)} cost with benchmarks/footprint.py, then list them"


def test_of_other_peoples_packages_there_are_three() -> None:
    foreign = {name.partition(".")[0] for name in loaded()} - OURS - {*sys.stdlib_module_names}
    assert foreign - {"sitecustomize", "usercustomize"} == {"msgspec", "nacl", "paho"}


def test_of_the_runtimes_it_loads_the_table_alone() -> None:
    folders = (name.split(".") for name in loaded())
    found = {parts[1] for parts in folders if parts[0] == "runtime_adapters" and len(parts) > 1}
    assert found == ADAPTERS


def test_what_fetches_from_others_and_serves_them_is_loaded_only_on_a_device_that_does() -> None:
    parts = {"agent.install.fetch.peer", "agent.peers.server", "agent.peers.held"}
    assert not parts & loaded()


def test_what_keeps_the_grpc_process_is_loaded_only_on_a_device_that_has_one() -> None:
    assert "agent.grpc_endpoint.keeper" not in loaded()


def test_hooks_are_loaded_only_on_a_device_that_has_some() -> None:
    assert not any("hooks.effects" in name for name in loaded())


def test_what_only_some_endpoints_offer_is_loaded_only_there() -> None:
    parts = {"metrics", "cors", "shared_memory", "client_user"}
    assert not {f"agent.serve.http.{part}" for part in parts} & loaded()
