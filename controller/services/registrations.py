"""Devices that an operator registers by serial number before they enrol.

Rules:
- All devices of a request are registered, or none. Repeating it changes nothing: a serial number
  that is registered gets the identifier and the labels of the newest request.
- Who has enrolled with a serial number keeps it; no other device enrols by itself with it.
- A serial number proves nothing by itself. A device needs a token, too.
"""

from __future__ import annotations

from typing import Final

from controller.domain.registration import MAX_REGISTERED, REMEDY, check_registration
from controller.errors import ConflictError, InvalidRequestError, UnknownDeviceError
from controller.registration_schemas import (
    MAX_AT_ONCE,
    Registered,
    RegisteredDevice,
    RegistrationRequest,
    ShownRegistration,
)
from controller.store import acting, registrations
from controller.store.database import Database, Transaction
from controller.store.registration_tables import RegistrationRow
from wire.clock import Clock
from wire.codec import convert
from wire.errors import FleetError

_SHOWN: Final = ("serial", "device", "labels", "registered_at_s", "claimed_by", "claimed_at_s")
"""The fields that have the same name in the table and in the API: all."""


class Registrations:
    """The devices that may enrol by themselves.

    Args:
        database: The control state.
        clock: Wall time.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def add(self, request: RegistrationRequest) -> Registered:
        """Register devices, or change what is registered for their serial numbers.

        Args:
            request: The devices.

        Returns:
            How many.

        Raises:
            InvalidRequestError: Too many, or one that cannot be; the fault names its line.
            ConflictError: An identifier is registered with another serial number.
        """
        if len(request.devices) > MAX_AT_ONCE:
            raise InvalidRequestError(
                f"{len(request.devices)} devices in one request are more than {MAX_AT_ONCE}",
                remedy="register them in several requests",
            )
        for each in request.devices:
            try:
                check_registration(each.serial, each.device, each.labels)
            except FleetError as exc:
                raise InvalidRequestError(f"{_place(each)}{exc.message}", remedy=REMEDY) from exc
        with self._database.transaction() as transaction:
            acting.about(f"{len(request.devices)} devices")
            for each in request.devices:
                self._put(transaction, each)
            transaction.flush()
            if registrations.count(transaction) > MAX_REGISTERED:
                raise ConflictError(
                    f"more than {MAX_REGISTERED} devices would be registered",
                    remedy="`fleet device unregister` removes those that are not needed",
                )
        return Registered(devices=len(request.devices))

    def page(self, *, after: str, limit: int) -> list[ShownRegistration]:
        """Return registrations, by serial number.

        Args:
            after: Begin after this serial number.
            limit: The greatest number.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            return [
                _shown(row) for row in registrations.page(transaction, after=after, limit=limit)
            ]

    def remove(self, serial: str) -> ShownRegistration:
        """Remove what is registered for a serial number; a device that has enrolled stays in.

        Args:
            serial: The serial number.

        Returns:
            What it was.

        Raises:
            UnknownDeviceError: Nothing is registered for it.
        """
        with self._database.transaction() as transaction:
            acting.about(serial)
            row = registrations.find(transaction, serial)
            if row is None:
                raise UnknownDeviceError(
                    f"no device is registered with the serial number {serial[:80]!r}",
                    remedy="`fleet device registered` shows those that are",
                )
            shown = _shown(row)
            transaction.delete(row)
        return shown

    def _put(self, transaction: Transaction, each: RegisteredDevice) -> None:
        """Register one device.

        Raises:
            ConflictError: Its identifier is registered with another serial number.
        """
        if each.device is not None:
            other = registrations.of_device(transaction, each.device)
            if other is not None and other.serial != each.serial:
                raise ConflictError(
                    f"{_place(each)}{each.device} is registered with the serial number "
                    f"{other.serial} already",
                    remedy=f"if that is wrong: `fleet device unregister {other.serial}`",
                )
        row = registrations.find(transaction, each.serial)
        if row is None:
            row = RegistrationRow(serial=each.serial, registered_at_s=self._clock.now_s())
            transaction.add(row)
        row.device, row.labels = each.device, dict(each.labels)


def _place(each: RegisteredDevice) -> str:
    return f"line {each.line}: " if each.line else ""


def _shown(row: RegistrationRow) -> ShownRegistration:
    return convert({name: getattr(row, name) for name in _SHOWN}, ShownRegistration)
