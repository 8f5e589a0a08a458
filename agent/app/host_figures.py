"""Records what the device and the agent's processes take: for people who look at a fleet.

What the agent itself decides by is read each second (`agent.app.sensing`); this here is read each
`EVERY_S`, and most of it leaves the device once a minute.

Rules:
- A value that the device does not have is not recorded.
- The processor time of a process counts from its start, and nothing of it twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from agent.serve import process_figures
from agent.serve.answered import Answered, Outcome
from agent.serve.router import Router
from agent.serve.served import ServedModels
from telemetry.device.recorder import Recorder
from telemetry.device.sensors import Sensors
from telemetry.device.sensors.files import plain_name
from telemetry.device.sensors.host import HostReading, HostSensors
from wire.clock import Clock

EVERY_S: Final = 10.0
SCAN_S: Final = 60.0
MAX_ZONES: Final = 16
"""Thermal zones that are reported apart; a phone's board has dozens that say the same."""

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    pid: int
    attributes: Mapping[str, str]


class HostFigures:
    """Records what the device and the agent's processes take.

    Args:
        sensors: Have read the thermal zones.
        host: Reads disks, network and energy.
        models: Their workers are this agent's, beside the supervisor.
        recorder: Takes the figures.
        clock: For the intervals.
    """

    def __init__(
        self,
        sensors: Sensors,
        host: HostSensors,
        models: ServedModels,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._sensors = sensors
        self._host = host
        self._models = models
        self._recorder = recorder
        self._clock = clock
        self._due_s = self._scan_due_s = clock.monotonic_s()
        self._ticks: dict[int, int] = {}
        """Processor time of each process at the last look."""

        self._lock = threading.Lock()
        self._answered = 0
        host.scan()
        if host.has_energy:
            models.listen(self._count)

    def tick(self) -> None:
        """Record what is due; called about once a second."""
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        if now_s >= self._scan_due_s:
            self._scan_due_s = now_s + SCAN_S
            self._host.scan()
        self._record_zones()
        self._record_host(self._host.read())
        self._record_processes()

    def _record_zones(self) -> None:
        numbers: dict[str, int] = {}
        for zone in self._sensors.zones[:MAX_ZONES]:
            kind = plain_name(zone.kind)
            number = numbers[kind] = numbers.get(kind, 0) + 1
            named = {"hw.id": kind if number == 1 else f"{kind}.{number}"}
            self._recorder.gauge("hw.temperature", zone.temperature_c, named)
            self._recorder.gauge("zone_headroom_ratio", zone.headroom, named)

    def _record_host(self, found: HostReading) -> None:
        recorder = self._recorder
        for name, size_bytes in found.traffic.written.items():
            named = {"system.device": name, "disk.io.direction": "write"}
            recorder.add("system.disk.io", size_bytes, named)
        for direction, counts in (
            ("receive", found.traffic.received),
            ("transmit", found.traffic.sent),
        ):
            for name, size_bytes in counts.items():
                named = {"network.interface.name": name, "network.io.direction": direction}
                recorder.add("system.network.io", size_bytes, named)
        if found.disk_free_bytes is not None:
            free = {"system.filesystem.state": "free"}
            recorder.gauge("system.filesystem.usage", found.disk_free_bytes, free)
        if found.io_stall_ratio is not None:
            recorder.gauge("io_stall_ratio", found.io_stall_ratio, {})
        for name, energy_j in found.energy_j.items():
            recorder.add("hw.energy", energy_j, {"hw.id": name})
        with self._lock:
            answered, self._answered = self._answered, 0
        if answered and found.energy_j:
            each_j = sum(found.energy_j.values()) / answered
            recorder.gauge("inference_energy_j", each_j, {})

    def _record_processes(self) -> None:
        before, self._ticks = self._ticks, {}
        for process in self._processes():
            pid, attributes = process
            rss_bytes = process_figures.rss_bytes(pid)
            if rss_bytes:
                self._recorder.gauge("process.memory.usage", rss_bytes, attributes)
            ticks, old = process_figures.processor_ticks(pid), before.get(pid, 0)
            if ticks is None:  # it waits for the disk, or has ended
                self._ticks[pid] = old
                continue
            self._ticks[pid] = ticks
            used_s = (ticks - old if ticks >= old else ticks) / TICKS_PER_S
            self._recorder.add("process.cpu.time", used_s, attributes)

    def _processes(self) -> Iterator[_Process]:
        yield _Process(os.getpid(), {"role": "supervisor"})
        for model in self._models.all():
            router = model.router
            for each in router.routes.loaded if isinstance(router, Router) else ():
                named = {"release": each.release, "variant": each.variant.name}
                yield _Process(each.worker.pid, {"role": "worker", **named})

    def _count(self, answered: Answered) -> None:
        if answered.outcome is Outcome.OK:
            with self._lock:
                self._answered += 1
