"""A simulated board: it becomes hot from the processor time that an agent's workers really use."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from agent.replay.plant import ThermalPlant

BOARD_SLOWDOWN = 12.0
"""How much slower the simulated board is than a server core: about a Cortex-A53 at 1.4 GHz."""


class Board:
    """A simulated board: a sysfs tree whose temperature a plant model moves.

    Args:
        root: Where the tree is made.
        ambient_c: Temperature around the board at the beginning.
    """

    def __init__(self, root: Path, *, ambient_c: float = 30.0) -> None:
        self.root = root
        self.ambient_c = ambient_c
        # A real board takes minutes to heat; this one is small enough to watch.
        self.plant = ThermalPlant(
            resistance_c_per_w=4.0, time_constant_s=3.0, idle_w=1.0, busy_w=6.0
        )
        self.temperature_c = self.plant.steady_c(ambient_c=ambient_c, utilization=0.0)
        self.utilization = 0.0
        self._busy_s: dict[int, float] = {}
        zone = root / "class" / "thermal" / "thermal_zone0"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "type").write_text("cpu-thermal\n")
        self._file = zone / "temp"
        self._write()

    def step(self, agent_pid: int | None, step_s: float) -> None:
        """Move the temperature on by a step, after the load of the agent's workers."""
        used_s = self._worker_seconds(agent_pid)
        self.utilization = min(1.0, BOARD_SLOWDOWN * used_s / step_s)
        self.temperature_c = self.plant.step(
            self.temperature_c,
            ambient_c=self.ambient_c,
            utilization=self.utilization,
            step_s=step_s,
        )
        self._write()

    def _worker_seconds(self, agent_pid: int | None) -> float:
        now: dict[int, float] = {}
        if agent_pid is not None:
            with contextlib.suppress(psutil.Error):
                for worker in psutil.Process(agent_pid).children(recursive=True):
                    times = worker.cpu_times()
                    now[worker.pid] = times.user + times.system
        used = sum(busy - self._busy_s[pid] for pid, busy in now.items() if pid in self._busy_s)
        self._busy_s = now
        return max(used, 0.0)

    def _write(self) -> None:
        # A reader must never see half a number, as with the kernel's own files.
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{round(self.temperature_c * 1000)}\n")
        fresh.replace(self._file)
