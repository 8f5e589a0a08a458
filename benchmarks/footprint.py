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
from pathlib import Path

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
    """Have the optimised bytecode on disk, as an installation has it."""
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


def _rows(agent: psutil.Process, peer: psutil.Popen, rounds: int, round_s: float) -> list[Row]:
    sizes: dict[str, list[float]] = {
        "agent_rss": [],
        "agent_pss": [],
        "peer_rss": [],
        "peer_pss": [],
    }
    shares: dict[str, list[float]] = {"agent": [], "peer": []}
    for _ in range(rounds):
        before = {name: cpu_s(process) for name, process in (("agent", agent), ("peer", peer))}
        time.sleep(round_s)
        for name, process in (("agent", agent), ("peer", peer)):
            memory = process.memory_full_info()
            sizes[f"{name}_rss"].append(memory.rss / MIB)
            sizes[f"{name}_pss"].append(memory.pss / MIB)
            shares[name].append(100 * (cpu_s(process) - before[name]) / round_s)
    return [
        against(
            "supervisor, resident", sizes["agent_rss"], sizes["peer_rss"],
            unit="MiB", peer="bare paho client",
        ),
        against(
            "supervisor, proportional", sizes["agent_pss"], sizes["peer_pss"],
            unit="MiB", peer="bare paho client",
        ),
        alone("supervisor, resident, aim", sizes["agent_rss"], unit="MiB", at_most=AIM_MIB),
        against(
            "supervisor, share of one core, beside", shares["agent"], shares["peer"],
            unit="%", peer="bare paho client",
        ),
        alone("supervisor, share of one core", shares["agent"], unit="%", at_most=AIM_CPU_PERCENT),
    ]  # fmt: skip


def cpu_s(process: psutil.Process) -> float:
    """Return the time that a process was on a processor; its threads do not end meanwhile.

    The kernel's usual figure comes in steps of 10 ms, which is half of what is measured here.
    """
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / NS_PER_S


if __name__ == "__main__":
    sys.exit(main("Footprint of the supervisor, connected and idle", measure))
