"""The values that the telemetry store accepts and returns."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import compress
from typing import Final, NamedTuple

from telemetry.metrics import Kind
from wire.codec import convert
from wire.telemetry import Event


class Series(NamedTuple):
    """A metric with its attributes."""

    id: int
    kind: Kind
    attributes: dict[str, str]
    """With release and variant; empty attributes are left out."""


class Reported(NamedTuple):
    """A metric that devices have reported."""

    name: str
    kind: Kind
    attributes: tuple[str, ...]
    """The names of those that its series have."""

    series: int
    """How many series it has."""


ROUNDING: Final = 1e-6
"""By how much a sum may be off, as a part of the greatest that it could be. That of `n` values,
added one by one, is off by a part of `n * 2**-53` at most: enough for 9e9 values in a minute."""


class Measure(NamedTuple):
    """The values of one series in one minute, hour or day."""

    value_count: int
    total: float
    least: float
    greatest: float
    sketch: bytes | None = None
    """Their histogram, as `telemetry.server.sketches` writes it; None for other kinds."""

    def has_possible_mean(self) -> bool:
        """Tell whether the mean is between the least and the greatest value, but for rounding."""
        count, total, least, greatest, _ = self
        slack = ROUNDING * count * max(abs(least), abs(greatest))
        return count * least - slack <= total <= count * greatest + slack


class Grain(NamedTuple):
    """How far rows stay apart when the database adds them up: those of a series always do."""

    step: int = 0
    """Rows of other steps of so many minutes; 0 for one step of all time."""

    by_minute: bool = False
    by_device: bool = False


class MinuteColumns(NamedTuple):
    """Many rows at once, or sums of rows, as columns: tuples of equal length."""

    series_id: tuple[int, ...]
    minute: tuple[int, ...]
    """The first minute of each sum."""

    last_minute: tuple[int, ...]
    device: tuple[str, ...]
    """Empty where devices are added up."""

    value_count: tuple[int, ...]
    total: tuple[float, ...]
    least: tuple[float, ...]
    greatest: tuple[float, ...]
    sketch: tuple[bytes | None, ...]

    def only(self, devices: Collection[str]) -> MinuteColumns:
        """Return the rows of some devices."""
        kept = [device in devices for device in self.device]
        return MinuteColumns._make(tuple(compress(column, kept)) for column in self)


class StoredEvent(NamedTuple):
    """An event and its device."""

    device: str
    event: Event


class DeviceLosses(NamedTuple):
    """How complete a device's telemetry is."""

    device: str
    batches: int
    dropped: int
    """Batches that the device dropped because its spool was full."""

    refused: int
    """Points and events that were malformed, too old or ahead, of a series beyond the limit, or
    beyond what is stored of one device."""

    newest_s: float | None = None
    """The end of the newest minute of which a measurement is stored; None if none is."""

    clock_ahead_s: float | None = None
    """How far its clock is ahead, if it is wrong and corrected; negative for behind."""


def attributes_of(release: str, variant: str, rest: str) -> dict[str, str]:
    """Return the attributes of a series from its columns; the model is a part of the release."""
    named = {"release": release, "variant": variant, "model": release.partition(":")[0]}
    others = convert(json.loads(rest), dict[str, str])
    others.pop("model", None)  # of older rows: a device made it up
    return {name: value for name, value in named.items() if value} | others
