"""What a fleet has shown in the last days, read from telemetry and the control state.

Rules:
- Devices are asked for in parts, so that no answer is larger than a query may give.
- What a gate asks is read by hour, as the gate itself reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from controller.domain.gates.language import Gate
from controller.domain.rehearsal.history import HOUR_S, Figures, Flags
from controller.services.gate_figures import REQUESTS, of_model
from telemetry.errors import UnknownMetricError
from telemetry.server.query import Query, run
from telemetry.server.question import DEVICE
from telemetry.server.store import TelemetryStore

HOURS: Final = 7 * 24
HEARD_BY: Final = (
    "temperature_c",
    "load_ratio",
    "system.linux.memory.available",
    REQUESTS,
)
"""What agents report while they run, whatever else they do. A device that reported any of it in an
hour was heard."""

_AT_ONCE: Final = 200
"""Devices in one query."""

Cells = Mapping[tuple[int, int], tuple[float, ...]]
"""What devices measured, by the number of the device and the hour."""


class HistoryReader:
    """Reads what devices measured in the last whole hours.

    Args:
        telemetry: What devices measured.
        devices: Which devices.
        model: Which model metrics are about, if they are about one.
        now_s: Wall time.
    """

    def __init__(
        self, telemetry: TelemetryStore, devices: Sequence[str], model: str, *, now_s: float
    ) -> None:
        self._telemetry = telemetry
        self._devices = devices
        self._model = model
        self._until_s = now_s // HOUR_S * HOUR_S
        self._since_s = max(0.0, self._until_s - HOURS * HOUR_S)

    def heard(self) -> Flags:
        """Return in which hours each device was heard.

        Raises:
            FleetError: The telemetry does not answer.
        """
        found = np.zeros((len(self._devices), HOURS), np.bool_)
        for metric in HEARD_BY:
            statistic = "total" if metric == REQUESTS else "count"
            for at in self._cells(Query(metric=metric), statistic):
                found[at] = True
        return found

    def figures(self, gate: Gate) -> Figures:
        """Return what devices measured for a gate.

        Raises:
            FleetError: The telemetry does not answer.
        """
        values = np.zeros((len(self._devices), HOURS))
        counts = np.zeros((len(self._devices), HOURS))
        about = Query(metric=gate.metric, where=gate.where + of_model(gate.metric, self._model))
        if gate.over or gate.statistic == "rate":
            # Devices report no counter that stands still: those that answered requests counted 0.
            whole = gate.over or REQUESTS
            over = Query(metric=whole, where=gate.over_where + of_model(whole, self._model))
            found = self._cells(about, "total")
            for at, (count,) in self._cells(over, "total").items():
                (counted,) = found.get(at, (0.0,))
                if count > 0.0:
                    values[at] = counted / (count if gate.over else HOUR_S)
                    counts[at] = count if gate.over else 1.0  # a rate is a mean over time
        else:
            for at, (value, count) in self._cells(about, gate.statistic, "count").items():
                values[at], counts[at] = value, count
        return Figures(values=values, counts=counts)

    def _cells(self, query: Query, *statistics: str) -> Cells:
        found: dict[tuple[int, int], tuple[float, ...]] = {}
        number = {device: at for at, device in enumerate(self._devices)}
        for begin in range(0, len(self._devices), _AT_ONCE):
            part = self._devices[begin : begin + _AT_ONCE]
            asked = replace(
                query,
                statistics=statistics,
                group_by=(DEVICE,),
                devices=frozenset(part),
                since_s=self._since_s,
                until_s=self._until_s,
                step_s=int(HOUR_S),
            )
            try:
                rows = run(self._telemetry, asked).rows
            except UnknownMetricError:  # nobody has told of it
                continue
            for start, device, *cells in rows:
                if None not in cells:
                    hour = HOURS - round((self._until_s - float(start or 0)) / HOUR_S)
                    told = tuple(float(cell or 0.0) for cell in cells)
                    found[number[str(device)], hour] = told
        return found
