"""Which devices count as one observation: those that one thing about them holds together. Pure.

Devices of one site see the same weather and the same people: a hundred of them tell less than a
hundred devices elsewhere. Who knows that names a label; then its values are the unit of chance.

Rules:
- A device that has no such label stays an observation of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from telemetry.errors import QueryError

Floats = npt.NDArray[np.float64]


class Units:
    """The observations that some devices make.

    Args:
        devices: The devices, one row of each table.
        values: Device to what it counts with; those that are not in it count alone.
    """

    def __init__(self, devices: Sequence[str], values: Mapping[str, str]) -> None:
        numbers: dict[tuple[str, str], int] = {}
        named = ((values.get(device, ""), device) for device in devices)
        keys = ((value, "" if value else device) for value, device in named)
        self._of = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.intp)
        self._count = len(numbers)

    def summed(self, table: Floats) -> Floats:
        """Return the sum of the rows of each observation's devices.

        Args:
            table: Shape (devices, ...).

        Returns:
            Shape (observations, ...).
        """
        sums = np.zeros((self._count, *table.shape[1:]))
        np.add.at(sums, self._of, table)
        return sums


def values_of(device_values: Mapping[str, Mapping[str, str]], unit: str) -> Mapping[str, str]:
    """Return with what devices count.

    Args:
        device_values: What is known of devices: name to device to value.
        unit: The name of a label, or of what else is known of devices; empty for each alone.

    Raises:
        QueryError: No device has that.
    """
    if not unit:
        return {}
    if unit not in device_values:
        raise QueryError(
            f"no device has a label {unit!r} that could be the unit",
            remedy="fleet device list shows the labels; without a unit each device counts alone",
        )
    return device_values[unit]


def units_text(unit: str) -> str:
    """Return what observations are called in a sentence."""
    return f"groups by {unit}" if unit else "devices"
