"""Reads the sensors once a second, records the readings, and lets the models choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.app.learnt_file import LearntFile
from agent.interrupts import Interrupts
from agent.select.adaptations import Adaptations
from telemetry.device.recorder import Recorder
from telemetry.device.sensors import Sensors
from wire.health import HealthSnapshot


class Sensing:
    """The loop from sensors to the choice of a variant.

    Args:
        sensors: The sensors of the device.
        recorder: Takes the readings.
        adaptations: Choose the variants by the readings.
        interrupts: Ends the loop.
        interval_s: Time between two readings.
        learnt: Keeps what the adaptation learnt; it is recalled here.
        figures: Called once a second, to record what else there is.
        keep: Keeps on disk what the recorder has, if it is time; the thread that sends it may be
            held up.
    """

    def __init__(
        self,
        sensors: Sensors,
        recorder: Recorder,
        adaptations: Adaptations,
        interrupts: Interrupts,
        *,
        interval_s: float,
        learnt: LearntFile,
        figures: Sequence[Callable[[], None]] = (),
        keep: Callable[[], None] | None = None,
    ) -> None:
        self._sensors = sensors
        self._recorder = recorder
        self._adaptations = adaptations
        self._interrupts = interrupts
        self._interval_s = interval_s
        self._learnt = learnt
        self._figures = figures
        self._keep = keep
        adaptations.recall(learnt.load())

    def run(self) -> None:
        """Sense and adapt until stopped.

        Raises:
            StoppedError: The agent is being stopped.
        """
        while True:
            self._interrupts.wait(self._interval_s, abandon=False)
            if self._keep is not None:
                self._keep()
            self._adaptations.tick(self.sense())
            self._learnt.keep(self._adaptations.learnt)
            ratio = self._adaptations.advice().sampling_ratio
            self._recorder.gauge("advised_sampling_ratio", ratio, {})
            for record in self._figures:
                record()

    def sense(self) -> HealthSnapshot:
        """Read the sensors once, and give the readings to the recorder and the adaptation."""
        health = self._sensors.read()
        self.record(self._recorder, health)
        self._adaptations.note(health)
        return health

    @staticmethod
    def record(recorder: Recorder, health: HealthSnapshot) -> None:
        """Record readings.

        Args:
            recorder: Takes them.
            health: The readings; what is unknown is not recorded.
        """
        readings = {
            "temperature_c": health.temperature_c,
            "headroom_ratio": health.headroom,
            "hw.battery.charge": health.battery_ratio,
            "system.linux.memory.available": health.memory_available_bytes,
            "throttled_ratio": health.throttled,
            "system.cpu.utilization": health.cpu_busy_ratio,
            "cpu_frequency_ratio": health.cpu_frequency_ratio,
            "cpu_stall_ratio": health.cpu_stall_ratio,
            "load_ratio": health.load_ratio,
            "memory_stall_ratio": health.memory_stall_ratio,
            "memory_full_stall_ratio": health.memory_full_stall_ratio,
        }
        for metric, value in readings.items():
            if value is not None:
                recorder.gauge(metric, float(value), {})
        if health.power_mw is not None:
            recorder.gauge("hw.power", health.power_mw / 1000, {"hw.id": "battery"})
