"""What packages may cost a network: `[[delivery.networks]]` of the configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from wire.windows import parse_window

MAX_NETWORKS: Final = 16
MAX_INTERFACES: Final = 32
MAX_PATTERN: Final = 64
MAX_BYTES: Final = 2**53
"""What every reader of JSON keeps exactly."""

OTHER: Final = "other"
"""The name under which bytes of all other networks are counted."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What packages may cost one kind of network."""

    name: str
    """As it is shown, such as `cellular`."""

    interfaces: tuple[str, ...]
    """Interfaces of the default route that belong to it: shell patterns such as `wwan*`."""

    bytes_per_day: int | None = None
    """Of the local day; 0 for never, None for no bound."""

    bytes_per_month: int | None = None
    """Of the local calendar month; 0 for never, None for no bound."""

    hours: str = ""
    """Hours of the local day, such as `01:00-05:00` or `22:00-04:00`; empty for all of it."""

    full: bool | None = None
    """Whether whole files may come, and not only deltas; without it they may where no bytes are
    bound."""

    @property
    def is_full(self) -> bool:
        """Whether whole files may come."""
        if self.full is not None:
            return self.full
        return self.bytes_per_day is None and self.bytes_per_month is None

    def faults(self) -> list[str]:
        """Return what is wrong, each as a line for the operator."""
        shown = repr(self.name[:MAX_PATTERN])
        lines = []
        if not _NAME.fullmatch(self.name) or self.name == OTHER:
            lines.append(f"delivery.networks: {shown} is no name: use a-z, 0-9, - and _")
        patterns = self.interfaces
        if not 0 < len(patterns) <= MAX_INTERFACES:
            lines.append(f"delivery.networks {shown} has no interfaces, or above {MAX_INTERFACES}")
        if not all(0 < len(pattern) <= MAX_PATTERN for pattern in patterns):
            lines.append(f"delivery.networks {shown} has an interface that is empty or too long")
        bounds = (self.bytes_per_day, self.bytes_per_month)
        if not all(each is None or 0 <= each <= MAX_BYTES for each in bounds):
            lines.append(f"delivery.networks {shown}: a bound is negative or above 2^53")
        if self.hours and parse_window(self.hours) is None:
            lines.append(
                f"delivery.networks {shown}: hours is not two different times, such as 01:00-05:00"
            )
        return lines


def faults_of(networks: Sequence[NetworkSettings], write_bytes_per_day: int | None) -> list[str]:
    """Return what is wrong with all budgets, each as a line for the operator."""
    lines = [line for network in networks for line in network.faults()]
    if len(networks) > MAX_NETWORKS:
        lines.append(f"delivery.networks has more than {MAX_NETWORKS} tables")
    if len({network.name for network in networks}) != len(networks):
        lines.append("delivery.networks names a network twice")
    if write_bytes_per_day is not None and not 0 < write_bytes_per_day <= MAX_BYTES:
        lines.append("delivery.write_bytes_per_day is not positive, or above 2^53")
    return lines
