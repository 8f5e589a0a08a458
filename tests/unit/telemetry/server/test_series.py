"""A handful of devices cannot keep new series out for all others."""

from __future__ import annotations

import pytest

from telemetry.server.bounds import Bounds
from telemetry.server.series import (
    COMMON_SERIES,
    FOLDED_OF_DEVICE,
    MAX_SERIES,
    RESERVED_OF_DEVICE,
    room_for,
)

SQLITE_VARIABLES = 32_766
MANY = Bounds().device_series


@pytest.mark.parametrize(
    ("every", "own", "room"),
    [
        (0, 0, MANY),
        (500, 500, MANY - 500),
        (5000, MANY, 0),
        (COMMON_SERIES - RESERVED_OF_DEVICE - 50, 0, RESERVED_OF_DEVICE + 50),
        (COMMON_SERIES - 1, 0, RESERVED_OF_DEVICE),
        (COMMON_SERIES, RESERVED_OF_DEVICE - 1, 1),
        (COMMON_SERIES, RESERVED_OF_DEVICE, 0),
        (COMMON_SERIES, MANY, 0),
        (MAX_SERIES - 7, 0, 7),
        (MAX_SERIES, 0, 0),
        (MAX_SERIES + 7, 0, 0),
    ],
)
def test_a_device_brings_fewer_when_there_are_many(every: int, own: int, room: int) -> None:
    assert room_for(every, own, MANY) == room


def test_it_takes_many_devices_to_use_up_all() -> None:
    every = devices = 0
    while (room := room_for(every, 0, MANY, more=FOLDED_OF_DEVICE)) > 0:
        every += room
        devices += 1
    assert (every, devices) == (MAX_SERIES, 72)


def test_a_query_can_name_every_series() -> None:
    assert MAX_SERIES < SQLITE_VARIABLES - 100
