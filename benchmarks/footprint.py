"""What the agent's supervisor costs while it is connected and idle.

After the manner of AWS Greengrass nucleus lite: proportional set size, median after a warm-up. The
peer is the least that anyone would write instead: paho connected to the same broker over TLS,
psutil, and a look at the temperature once a second, in the same interpreter. The controller that
answers the agent is a real one. The agent runs as its unit runs it: one malloc arena, bytecode
without docstrings, in an environment as a device has it. typing_extensions is there, as LiteRT's
package brings it, and msgspec imports it where it is: a device without it needs 1 MiB less.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.harness import Row, against, alone, main
from benchmarks.programs import program
from controller.app.home import CA_FILE
from examples.digits.box import Box, stopping, until
from tests.simulators.device_environment import device_environment
from wire.enrolment import enrol_username

ROOT = Path(__file__).parents[1]
MIB = 1024 * 1024
NS_PER_S = 1e9
AIM_MIB = 30.0
AIM_CPU_PERCENT = 0.2


def measure(quick: bool) -> list[Row]:
    """Measure both, alternately.

    Args:
        quick: Fewer and shorter rounds.

    Returns:
        The rows.
    """
    rounds, round_s, warm_s = (5, 4.0, 8.0) if quick else (20, 10.0, 60.0)
    with tempfile.TemporaryDirectory() as directory:
        programs = device_environment(
            Path(directory) / "environment", "psutil", "typing_extensions"
        )
        box = Box(Path(directory) / "box", agents=programs)
        with stopping(box):
            agent, peer = _start(box, programs)
            try:
                time.sleep(warm_s)
                return _rows(agent, peer, rounds, round_s)
            finally:
                peer.kill()


def compile_all(python: Path) -> None:
    """Have the optimised bytecode on disk, as an installation has it.

    Args:
        python: The interpreter of the device.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [str(python), "-OO", "-c", "import agent.cli.main, agent.app.daemon"]
    subprocess.run(command, check=True, env=environment)


def _start(box: Box, programs: Path) -> tuple[psutil.Process, psutil.Popen]:
    compile_all(programs / "python")
    box.initialize()
    box.start("broker")
    box.start("controller")
    box.until_connected()
    token = box.fleet_json("token", "create")["token"]
    box.add_device("idle", ROOT / "packager" / "profiles" / "edge-min.toml", token, {})
    # As shipped: one look at the sensors a second, one telemetry batch every ten.
    config = box.devices["idle"].config
    kept = [line for line in config.read_text().splitlines() if "interval_s" not in line]
    config.write_text("\n".join(kept) + "\n")
    box.start("idle")
    until("the device", lambda: box.api("/v1/devices")[0]["online"], 30)
    # An enrolment token is an account at the broker: the peer connects with one of its own.
    spare = str(box.fleet_json("token", "create")["token"])
    peer = psutil.Popen(
        [
            programs / "python",
            "-P",
            program("paho_client"),
            str(box.broker_port),
            str(box.home / CA_FILE),
            enrol_username(spare),
            spare,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONOPTIMIZE": "2", "MALLOC_ARENA_MAX": "1"},  # as the agent has it
    )
    pid = box.pid("idle")
    if pid is None:
        raise RuntimeError(box.log_tail("idle"))
    return psutil.Process(pid), peer


class Watched(NamedTuple):
    """What some processes cost, a value for each round."""

    rss_mib: list[float]
    pss_mib: list[float]
    cpu_percent: list[float]
    """Share of one core."""


def watch(processes: Sequence[psutil.Process], rounds: int, round_s: float) -> list[Watched]:
    """Watch processes at the same time.

    Args:
        processes: Which.
        rounds: How often.
        round_s: Length of a round.

    Returns:
        What each cost.
    """
    found = [Watched([], [], []) for _ in processes]
    for _ in range(rounds):
        before_s = [_cpu_s(process) for process in processes]
        time.sleep(round_s)
        for process, watched, was_s in zip(processes, found, before_s, strict=True):
            memory = process.memory_full_info()
            watched.rss_mib.append(memory.rss / MIB)
            watched.pss_mib.append(memory.pss / MIB)
            watched.cpu_percent.append(100 * (_cpu_s(process) - was_s) / round_s)
    return found


def _rows(agent: psutil.Process, peer: psutil.Popen, rounds: int, round_s: float) -> list[Row]:
    ours, theirs = watch((agent, peer), rounds, round_s)
    return [
        against(
            "supervisor, resident", ours.rss_mib, theirs.rss_mib,
            unit="MiB", peer="bare paho client",
        ),
        against(
            "supervisor, proportional", ours.pss_mib, theirs.pss_mib,
            unit="MiB", peer="bare paho client",
        ),
        alone("supervisor, resident, aim", ours.rss_mib, unit="MiB", at_most=AIM_MIB),
        against(
            "supervisor, share of one core, beside", ours.cpu_percent, theirs.cpu_percent,
            unit="%", peer="bare paho client",
        ),
        alone("supervisor, share of one core", ours.cpu_percent, unit="%", at_most=AIM_CPU_PERCENT),
    ]  # fmt: skip


def _cpu_s(process: psutil.Process) -> float:
    """Return the time that a process was on a processor; its threads do not end meanwhile.

    The kernel's usual figure comes in steps of 10 ms, which is half of what is measured here.
    """
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / NS_PER_S


if __name__ == "__main__":
    sys.exit(main("Footprint of the supervisor, connected and idle", measure))
