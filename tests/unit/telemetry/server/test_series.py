"""A handful of devices cannot keep new series out for all others."""

from __future__ import annotations

import pytest

from telemetry.server.series import (
    COMMON_SERIES,
    MAX_SERIES,
    MAX_SERIES_OF_DEVICE,
    RESERVED_OF_DEVICE,
    room_for,
)

SQLITE_VARIABLES = 32_766


@pytest.mark.parametrize(
    ("every", "own", "room"),
    [
        (0, 0, MAX_SERIES_OF_DEVICE),
        (500, 500, MAX_SERIES_OF_DEVICE - 500),
        (5000, MAX_SERIES_OF_DEVICE, 0),
        (COMMON_SERIES - RESERVED_OF_DEVICE - 50, 0, RESERVED_OF_DEVICE + 50),
        (COMMON_SERIES - 1, 0, RESERVED_OF_DEVICE),
        (COMMON_SERIES, RESERVED_OF_DEVICE - 1, 1),
        (COMMON_SERIES, RESERVED_OF_DEVICE, 0),
        (COMMON_SERIES, MAX_SERIES_OF_DEVICE, 0),
        (MAX_SERIES - 7, 0, 7),
        (MAX_SERIES, 0, 0),
        (MAX_SERIES + 7, 0, 0),
    ],
)
def test_a_device_brings_fewer_when_there_are_many(every: int, own: int, room: int) -> None:
    assert room_for(every, own) == room


def test_it_takes_many_devices_to_use_up_all() -> None:
    every = devices = 0
    while room_for(every, 0) > 0:
        every += room_for(every, 0)
        devices += 1
    assert (every, devices) == (MAX_SERIES, 85)


def test_a_query_can_name_every_series() -> None:
    assert MAX_SERIES < SQLITE_VARIABLES - 100
