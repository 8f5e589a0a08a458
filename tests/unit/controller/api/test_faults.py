"""Which status a fault has."""

from __future__ import annotations

import pytest

from controller import errors
from controller.api.faults import status_of
from controller.broker.errors import BrokerAccessError, BrokerAccountError
from telemetry.errors import QueryError, TelemetryStoreError, UnknownMetricError
from wire.errors import FleetError, IntegrityError, SignatureError, TransportError


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.UnauthorizedError, 401),
        (errors.EndedTokenError, 401),
        (errors.OwnRolloutError, 403),
        (errors.WrongTokensError, 429),
        (errors.UnknownDeviceError, 404),
        (UnknownMetricError, 404),
        (errors.ConflictError, 409),
        (errors.IllegalTransitionError, 409),
        (errors.TooLargeError, 413),
        (errors.SelectorError, 422),
        (QueryError, 422),
        (SignatureError, 422),
        (IntegrityError, 422),
        (errors.BusyError, 503),
        (errors.DatabaseError, 503),
        (errors.StorageError, 503),
        (TelemetryStoreError, 503),
        (TransportError, 503),
        (BrokerAccessError, 503),
        (BrokerAccountError, 400),
        (errors.SettingsError, 400),
    ],
)
def test_statuses(kind: type[FleetError], status: int) -> None:
    assert status_of(kind("x")) == status
