"""Requests about measurements that lent devices make."""

from __future__ import annotations

import builtins

from controller.client.connection import segment
from controller.client.listing import Resource
from controller.measure_schemas import Askable, Measurement, MeasurementRequest
from wire.measuring import ProfileFigures


class Measurements(Resource):
    """Measurements of releases on devices."""

    def list(self, *, limit: int = 20) -> builtins.list[Measurement]:
        """Return the newest measurements, the newest first."""
        return self._api.get("/v1/measurements", list[Measurement], {"limit": str(limit)})

    def get(self, measurement: str) -> Measurement:
        """Return a measurement, and what devices answered."""
        return self._api.get(f"/v1/measurements/{segment(measurement)}", Measurement)

    def ask(self, request: MeasurementRequest) -> Measurement:
        """Ask lent devices to measure a release, beside what they serve."""
        return self._api.send("POST", "/v1/measurements", Measurement, request)

    def cancel(self, measurement: str) -> Measurement:
        """Wait no longer for devices that have not answered."""
        path = f"/v1/measurements/{segment(measurement)}/cancel"
        return self._api.send("POST", path, Measurement)

    def figures(self, *, profile: str = "") -> builtins.list[ProfileFigures]:
        """Return what variants needed on devices of each profile, or of one."""
        return self._api.get("/v1/measurements/figures", list[ProfileFigures], {"profile": profile})

    def askable(self, selector: str) -> Askable:
        """Return which devices could be asked now; nobody is asked."""
        return self._api.get("/v1/measurements/devices", Askable, {"selector": selector})
