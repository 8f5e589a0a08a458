"""Reads the sensors once a second, records the readings, and lets the adaptation choose."""

from __future__ import annotations

from agent.app.learnt_file import LearntFile
from agent.interrupts import Interrupts
from agent.select.adaptation import Adaptation
from telemetry.device.recorder import Recorder
from telemetry.device.sensors import Sensors
from wire.health import HealthSnapshot


class Sensing:
    """The loop from sensors to the choice of a variant.

    Args:
        sensors: The sensors of the device.
        recorder: Takes the readings.
        adaptation: Chooses a variant by the readings.
        interrupts: Ends the loop.
        interval_s: Time between two readings.
        learnt: Keeps what the adaptation learnt; it is recalled here.
    """

    def __init__(
        self,
        sensors: Sensors,
        recorder: Recorder,
        adaptation: Adaptation,
        interrupts: Interrupts,
        *,
        interval_s: float,
        learnt: LearntFile,
    ) -> None:
        self._sensors = sensors
        self._recorder = recorder
        self._adaptation = adaptation
        self._interrupts = interrupts
        self._interval_s = interval_s
        self._learnt = learnt
        adaptation.recall(learnt.load())

    def run(self) -> None:
        """Sense and adapt until stopped.

        Raises:
            StoppedError: The agent is being stopped.
        """
        while True:
            self._interrupts.wait(self._interval_s, abandon=False)
            self._adaptation.tick(self.sense())
            self._learnt.keep(self._adaptation.learnt)
            ratio = self._adaptation.advice().sampling_ratio
            self._recorder.gauge("advised_sampling_ratio", ratio, {})

    def sense(self) -> HealthSnapshot:
        """Read the sensors once, and give the readings to the recorder and the adaptation."""
        health = self._sensors.read()
        readings = {
            "temperature_c": health.temperature_c,
            "headroom_ratio": health.headroom,
            "battery_ratio": health.battery_ratio,
            "memory_available_bytes": health.memory_available_bytes,
        }
        for metric, value in readings.items():
            if value is not None:
                self._recorder.gauge(metric, float(value), {})
        self._adaptation.note(health)
        return health
