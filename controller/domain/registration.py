"""Reads the devices that an operator registers before they enrol, from a CSV file. Pure.

```
id,serial,site,rack
cam-1,10000000a1,berlin,7
,10000000a2,berlin,
```

Rules:
- The first line names the columns: `serial`, perhaps `id`, and each other one is a label.
- An empty cell is none: no label, or no identifier, so that the device may have any.
- A serial number and an identifier stand in one line at most.
- A fault names its line. All of them are found before anything is done.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from controller.domain.acceptance import MAX_SERIAL_CHARS, is_serial
from controller.domain.selectors import checked_labels
from controller.errors import InvalidRequestError
from wire.errors import FleetError
from wire.topics import checked_device

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
MAX_REGISTERED: Final = 100_000
MAX_FAULTS: Final = 10
"""Faults that are told."""

ID: Final = "id"
SERIAL: Final = "serial"
REMEDY: Final = "docs/enrolment.md says how the file is written"

_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line does not end at the other signs that Python counts as ends: a cell may hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A device that may enrol by itself."""

    line: int
    serial: str
    device: str | None
    """The identifier with which it must enrol; None for any."""

    labels: dict[str, str]


def read_registrations(text: str) -> list[Registration]:
    """Read a file of devices.

    Args:
        text: CSV with a line of headings.

    Raises:
        InvalidRequestError: It cannot be read; the first fault is its message, and further ones are
            shown below.
    """
    reader = csv.reader(_LINE.findall(text), strict=True)
    try:
        columns = _columns(next(reader, []))
        found: list[Registration] = []
        faults: list[str] = []
        for cells in reader:
            if not any(cells):
                continue
            try:
                found.append(_read(columns, cells, reader.line_num))
            except FleetError as exc:
                faults.append(f"line {reader.line_num}: {exc.message}")
    except csv.Error as exc:
        raise InvalidRequestError(f"line {reader.line_num}: {exc}", remedy=REMEDY) from exc
    faults += _repeated(found)
    if len(found) > MAX_REGISTERED:
        faults.append(f"{len(found)} devices are more than the limit of {MAX_REGISTERED}")
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        fault = InvalidRequestError(faults[0] + more, remedy=REMEDY)
        fault.shown = tuple(faults[1:MAX_FAULTS])
        raise fault
    return found


def _columns(names: Sequence[str]) -> list[str]:
    columns = [name.strip() for name in names]
    if SERIAL not in columns:
        hint = " (the columns are parted by commas)" if any(";" in name for name in names) else ""
        raise InvalidRequestError(
            f"line 1: there is no column {SERIAL}{hint}", remedy=f"begin with a line {ID},{SERIAL}"
        )
    for name in columns:
        if columns.count(name) > 1:
            raise InvalidRequestError(f"line 1: two columns are called {name!r}", remedy=REMEDY)
    labels = {name: "x" for name in columns if name not in {ID, SERIAL}}
    try:
        checked_labels(labels)
    except InvalidRequestError as exc:
        raise InvalidRequestError(f"line 1: {exc.message}", remedy=exc.remedy) from exc
    return columns


def _read(columns: Sequence[str], cells: Sequence[str], line: int) -> Registration:
    if len(cells) != len(columns):
        raise InvalidRequestError(f"it has {len(cells)} cells, and line 1 has {len(columns)}")
    values = {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}
    device = values.pop(ID, "") or None
    registration = Registration(
        line=line,
        serial=values.pop(SERIAL),
        device=device,
        labels={name: value for name, value in values.items() if value},
    )
    check_registration(registration.serial, device, registration.labels)
    return registration


def check_registration(serial: str, device: str | None, labels: dict[str, str]) -> None:
    """Check a device that is registered.

    Args:
        serial: Its serial number.
        device: Its identifier; None for any.
        labels: Those that it gets.

    Raises:
        InvalidRequestError: No device can say that serial number, or labels that no selector names.
        TopicError: No device can have that identifier.
    """
    if not is_serial(serial):
        raise InvalidRequestError(
            f"{serial[:80]!r} is no serial number: 1 to {MAX_SERIAL_CHARS} of A-Z a-z 0-9 . _ : / -"
        )
    if device is not None:
        checked_device(device)
    checked_labels(labels)


def _repeated(found: Sequence[Registration]) -> Iterator[str]:
    serials: dict[str, int] = {}
    devices: dict[str, int] = {}
    for each in found:
        for seen, name in ((serials, each.serial), (devices, each.device)):
            if name is None:
                continue
            first = seen.setdefault(name, each.line)
            if first != each.line:
                yield f"line {each.line}: {name} stands in line {first}, too"
