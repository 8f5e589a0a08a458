"""Requests about devices that wait to be let in, and about those that are registered."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from controller.client.connection import segment
from controller.client.listing import Resource
from controller.enrolment_schemas import WaitingDevice
from controller.registration_schemas import Registered, RegistrationRequest, ShownRegistration

_AT_ONCE: Final = 10_000


class Waiting(Resource):
    """Devices that wait to be let in."""

    def list(self) -> builtins.list[WaitingDevice]:
        """Return those that wait, and those that were refused."""
        return self._api.get("/v1/waiting", list[WaitingDevice])

    def accept(self, device: str) -> WaitingDevice:
        """Let a device in."""
        return self._api.send("POST", f"/v1/waiting/{segment(device)}/accept", WaitingDevice)

    def refuse(self, device: str) -> WaitingDevice:
        """Keep a device out."""
        return self._api.send("POST", f"/v1/waiting/{segment(device)}/refuse", WaitingDevice)


class Registrations(Resource):
    """Devices that enrol by themselves, by their serial number."""

    def list(self) -> Iterator[ShownRegistration]:
        """List the devices that are registered by serial number, and who has enrolled."""
        params = {"limit": str(_AT_ONCE)}
        while page := self._api.get("/v1/registrations", list[ShownRegistration], params):
            yield from page
            params["after"] = page[-1].serial

    def add(self, request: RegistrationRequest) -> Registered:
        """Register devices, all or none."""
        return self._api.send("POST", "/v1/registrations", Registered, request)

    def remove(self, serial: str) -> ShownRegistration:
        """Forget what is registered for a serial number; a device that has enrolled stays in."""
        path = f"/v1/registrations?{urlencode({'serial': serial})}"
        return self._api.send("DELETE", path, ShownRegistration)
