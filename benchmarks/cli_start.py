"""How long a command that reads takes: from the call to its end, beside an interpreter's own start.

A controller with a few devices in its database runs on this machine; each command is a process of
its own. The rounds of all commands and of both peers alternate. The processor time is what is left
of the figures on a machine that does other things.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import Row, against, alone, main
from tests.simulators.packages import package, variant
from tests.simulators.patience import until
from tests.simulators.stack import Puppet, Stack, running_stack
from wire.trust.envelope import SigningKey

ROUNDS: Final = 15
AIM_S: Final = 0.4
PEER: Final = "python -c 'import typer'"
FLEET: Final = str(Path(sys.executable).parent / "fleet")


class Taken(NamedTuple):
    """What one process took, in seconds."""

    wall_s: float
    processor_s: float


def measure(quick: bool) -> list[Row]:
    """Run every command some times."""
    with running_stack() as stack:
        rollout = _filled(stack)
        where = ("--home", str(stack.home))
        query = ("telemetry", "query", "--metric", "inference_latency_ms", "--by", "variant")
        commands = {
            "python -c pass": (sys.executable, "-c", "pass"),
            PEER: (sys.executable, "-c", "import typer"),
            "fleet --version": (FLEET, "--version"),
            "fleet --help": (FLEET, "--help"),
            "fleet device list": (FLEET, "device", "list", *where),
            "fleet rollout show": (FLEET, "rollout", "show", rollout, *where),
            "fleet telemetry query": (FLEET, *query, *where),
        }
        taken: dict[str, list[Taken]] = {name: [] for name in commands}
        for _ in range(3 if quick else ROUNDS):
            for name, command in commands.items():
                taken[name].append(_run(command))
    rows = []
    for name in list(commands)[2:]:
        wall_s = [one.wall_s for one in taken[name]]
        rows.append(alone(f"{name}, wall time", wall_s, unit="s", at_most=AIM_S))
    for name in [each for each in commands if each != PEER]:
        ours = [one.processor_s for one in taken[name]]
        theirs = [one.processor_s for one in taken[PEER]]
        rows.append(against(f"{name}, processor time", ours, theirs, unit="s", peer=PEER))
    return rows


def _filled(stack: Stack) -> str:
    """Enrol a device, bring it a release, have it send telemetry, and return the rollout."""
    key = SigningKey(stack.release_key.read_bytes())
    folder = stack.home.parent / "package"
    package("1", [(variant("best"), b"model")], key=key).write_to(folder)
    stack.ok("release", "publish", str(folder))
    puppet = Puppet(stack, "cam-1", stack.ok("token", "create").out.strip(), "succeeded")
    done = stack.ok("rollout", "create", "digits:1", "--watch")
    puppet.send_telemetry()
    until(lambda: bool(stack.ok("why", "cam-1", "--json").json), "telemetry")
    puppet.transport.close()
    return done.out.splitlines()[0]


def _run(command: tuple[str, ...]) -> Taken:
    began_s, before = time.monotonic(), os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    return Taken(
        wall_s=time.monotonic() - began_s,
        processor_s=after.children_user
        + after.children_system
        - before.children_user
        - before.children_system,
    )


if __name__ == "__main__":
    sys.exit(main("The start of a command", measure))
