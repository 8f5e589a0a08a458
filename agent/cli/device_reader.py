"""Reads this device: its sensors, its processor, and the counters of its agent.

Rules:
- This module reads the sensors itself; it asks the agent only for its counters.
- If no agent answers, that is no error: the reading then has no figures of the agent.
"""

from __future__ import annotations

import os

from agent.app.config import AgentConfig
from agent.app.control import SOCKET_FILE, ask
from agent.app.named_files import load_profile
from agent.replay.processes import read_descendants, read_processor
from agent.replay.recording import Figures, Sample
from agent.replay.traces import Sensed
from telemetry.device.sensors import Sensors
from wire.clock import Clock, SystemClock
from wire.codec import convert
from wire.errors import FleetError
from wire.health import HealthSnapshot


class Device:
    """Reads this device.

    Args:
        config: Says where its files and its agent are.
        clock: For sensors and for the time between two readings.
    """

    def __init__(self, config: AgentConfig, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.fault = ""
        """Why no agent answered the last request that failed."""

        self._procfs = config.procfs_root
        self._socket = config.state_dir / SOCKET_FILE
        self._sensors = Sensors(
            load_profile(config),
            self.clock,
            sysfs_root=config.sysfs_root,
            procfs_root=config.procfs_root,
        )

    def read(self) -> tuple[Sample, HealthSnapshot]:
        """Return a reading of this moment."""
        figures = self._figures()
        at_s = self.clock.monotonic_s()
        health = self._sensors.read()
        processor = read_processor(self._procfs)
        workers = read_descendants(self._procfs, figures.pid) if figures else None
        own_s = dict(workers.processor_s) if workers else {}
        own_s[os.getpid()] = sum(os.times()[:2])
        cores = processor.cores if processor else 1
        return Sample(
            at_s=at_s,
            sensed=_sensed(health),
            busy_s=processor.busy_s if processor else None,
            own_s={pid: spent_s / cores for pid, spent_s in own_s.items()},
            held_bytes=workers.held_bytes if workers else 0,
            figures=figures,
        ), health

    def _figures(self) -> Figures | None:
        try:
            return convert(ask(self._socket, "figures"), Figures)
        except FleetError as exc:
            self.fault = exc.message
            return None


def _sensed(health: HealthSnapshot) -> Sensed:
    return Sensed(**{name: getattr(health, name) for name in Sensed.__struct_fields__})
