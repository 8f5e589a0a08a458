"""What the agent's supervisor costs while it serves three models that nobody asks.

As `footprint.py`, with the same way of running the agent and the same figures, but with three
models in service, each in a worker of its own. The peer is the same agent with one model: what two
more models cost. The workers are left out. A program plays the controller, at a broker without TLS,
so the memory of TLS is not in it (`footprint.py` has it).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from benchmarks.footprint import AIM_CPU_PERCENT, AIM_MIB, compile_all, watch
from benchmarks.harness import Row, against, alone, main
from tests.simulators.agent_process import DEVICE, Controller, Device, null_package
from tests.simulators.broker import running_broker
from tests.simulators.device_environment import device_environment
from tests.simulators.packages import DIRECTOR_KEY
from tests.simulators.patience import until
from wire.desired import (
    DESIRED_PAYLOAD_TYPE,
    NAMED_MODELS,
    DesiredModels,
    ModelState,
    desired_to_json,
)
from wire.installs import InstallReport
from wire.presence import Hello
from wire.topics import down
from wire.trust.envelope import seal

NAMES = ("digits", "speech", "video")


def measure(quick: bool) -> list[Row]:
    """Measure both, alternately.

    Args:
        quick: Fewer and shorter rounds.

    Returns:
        The rows.
    """
    rounds, round_s, warm_s = (5, 4.0, 8.0) if quick else (20, 10.0, 60.0)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        root = Path(directory)
        programs = device_environment(root / "environment", "psutil", "numpy", "typing_extensions")
        compile_all(programs / "python")
        one = stack.enter_context(_serving(root / "one", programs, NAMES[:1]))
        three = stack.enter_context(_serving(root / "three", programs, NAMES))
        time.sleep(warm_s)
        return _rows(three, one, rounds, round_s)


@contextmanager
def _serving(directory: Path, programs: Path, names: tuple[str, ...]) -> Iterator[psutil.Process]:
    directory.mkdir()
    with running_broker() as broker:
        controller, device = Controller(broker), Device(directory, broker)
        # As shipped: one look at the sensors a second, one telemetry batch every ten.
        text = device.config_path.read_text()
        for line in ("sense_interval_s = 0.1\n", "telemetry_interval_s = 0.2\n"):
            text = text.replace(line, "")
        device.config_path.write_text(text)
        process = _start(programs, device)
        try:
            until(lambda: controller.all("hello", Hello), "a hello")
            _install(controller, names)
            yield psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait()
            controller.transport.close()


def _start(programs: Path, device: Device) -> subprocess.Popen[bytes]:
    with (device.directory / "log").open("ab") as log:
        return subprocess.Popen(
            [programs / "fleet-agent", "run", "--config", device.config_path],
            stdin=subprocess.DEVNULL,
            stderr=log,
            env={"PYTHONOPTIMIZE": "2", "MALLOC_ARENA_MAX": "1", "PATH": "/usr/bin:/bin"},
        )


def _install(controller: Controller, names: tuple[str, ...]) -> None:
    packages = [null_package("1.0.0", name=name) for name in names]
    for package in packages:
        controller.chunks.add(*package.blobs)
    wanted = DesiredModels(
        device=DEVICE,
        revision=1,
        issued_at_s=1.0,
        models=tuple(
            ModelState(name=p.index.name, revision=1, release=p.ref, rollout="r") for p in packages
        ),
    )
    payload = desired_to_json(wanted, form=NAMED_MODELS)
    envelope = seal(payload, payload_type=DESIRED_PAYLOAD_TYPE, keys=[DIRECTOR_KEY])
    controller.transport.publish(down(DEVICE, "desired"), envelope)

    def served() -> bool:
        reports = controller.all("report", InstallReport)
        return {r.model for r in reports if r.outcome == "succeeded"} == set(names)

    until(served, "all models")


def _rows(three: psutil.Process, one: psutil.Process, rounds: int, round_s: float) -> list[Row]:
    ours, theirs = watch((three, one), rounds, round_s)
    return [
        against(
            "supervisor with three models, resident", ours.rss_mib, theirs.rss_mib,
            unit="MiB", peer="with one model",
        ),
        alone("the same, aim", ours.rss_mib, unit="MiB", at_most=AIM_MIB),
        against(
            "supervisor with three models, share of one core", ours.cpu_percent,
            theirs.cpu_percent, unit="%", peer="with one model",
        ),
        alone("the same, aim", ours.cpu_percent, unit="%", at_most=AIM_CPU_PERCENT),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main("Footprint of the supervisor with three models, idle", measure))
