"""What `fleet simulate` tells the program that plays devices, and what that tells back. Pure.

The plan comes on standard input, because it holds a token; figures go out as lines of JSON.

Rules:
- A fault has a name and a number: a share of devices or installs, or a factor. The table says
  which.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from wire.errors import WireFormatError
from wire.profile import DeviceProfile

MAX_DEVICES: Final = 100_000
SHARE: Final = (0.0, 1.0)
FACTOR: Final = (0.1, 100.0)
SIMULATED: Final = "simulated"
"""The label of simulated devices, whose value is `true`."""

_NUMBER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")


class Fault(NamedTuple):
    """A fault that can be asked for."""

    meaning: str
    bounds: tuple[float, float] = SHARE


FAULTS: Final[dict[str, Fault]] = {
    "no_space": Fault("installs that find no space on the device"),
    "damaged": Fault("installs whose package is damaged on the storage"),
    "fails_check": Fault("installs whose golden test gives other answers"),
    "crash_after_install": Fault("installs whose model crashes once it serves; they are undone"),
    "hangs": Fault("installs that never end"),
    "restarts": Fault("installs in whose middle the device restarts"),
    "offline": Fault("of the time that a device is switched off"),
    "slow_network": Fault("of devices with a tenth of the usual rate"),
    "hot": Fault("of devices in surroundings 25 C warmer"),
    "slower": Fault("latency with every release but the first one, as a factor", FACTOR),
    "failing": Fault("of requests that fail with every release but the first one"),
}
"""By name; a share of what its meaning says, or a factor."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to play."""

    prefix: str
    """What names of devices begin with; a hyphen and the number follow."""

    numbers: tuple[int, int]
    """The first device, and the one after the last."""

    seed: int
    labels: dict[str, str]
    profile: DeviceProfile
    trust: str
    """The trust file, as text."""

    token: str
    host: str
    port: int
    ca_file: str | None = None
    telemetry_s: float = 60.0
    """Time between two batches of figures."""

    speed: float = 1.0
    """How many times faster than a usual device installs do their work, chunks aside."""

    fetch_bytes: int = 1024 * 1024
    """How much of each package is really fetched; the rest only takes its time."""

    faults: dict[str, float] = {}


class Tally(msgspec.Struct, kw_only=True):
    """What has happened so far, in one process or in all."""

    enrolled: int = 0
    online: int = 0
    sent: int = 0
    """Messages that devices published."""

    received: int = 0
    installs_begun: int = 0
    installs_done: int = 0
    installs_failed: int = 0
    batches_sent: int = 0
    batches_stored: int = 0
    """Those that the controller has acknowledged."""

    batches_lost: int = 0
    """Those that a device dropped because too many waited."""

    refused: int = 0
    """Devices that the controller refused."""

    last_refusal: str = ""
    faults: int = 0
    """Messages that a device could not use, or could not answer."""

    last_fault: str = ""


def total(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of what several processes tell."""
    names = [field.name for field in msgspec.structs.fields(Tally) if field.type is int]
    sums = {name: sum(getattr(each, name) for each in tallies) for name in names}
    return Tally(
        **sums,
        last_refusal=max((each.last_refusal for each in tallies), default=""),
        last_fault=max((each.last_fault for each in tallies), default=""),
    )


def parse_faults(texts: Sequence[str]) -> dict[str, float]:
    """Read faults as people write them.

    Args:
        texts: Each as `no_space=2%`, `offline=0.1` or `slower=1.1`.

    Returns:
        The number of each, by name.

    Raises:
        WireFormatError: There is no such fault, or its number is none or out of bounds.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        fault = FAULTS.get(name)
        if fault is None:
            raise WireFormatError(
                f"{name[:64]!r} is no fault", remedy=f"the faults are {', '.join(FAULTS)}"
            )
        percent = number.endswith("%")
        plain = number.removesuffix("%")
        value = float(plain) if _NUMBER.fullmatch(plain) else math.nan
        value = value / 100.0 if percent else value
        if not fault.bounds[0] <= value <= fault.bounds[1]:
            example = "2%" if fault.bounds == SHARE else "1.1"
            raise WireFormatError(
                f"{text[:64]!r}: the number is not within {fault.bounds[0]:g} to "
                f"{fault.bounds[1]:g}",
                remedy=f"write it as {name}={example}",
            )
        found[name] = value
    return found


def shown_faults(faults: Mapping[str, float]) -> str:
    """Return faults on one line, as they are written."""
    return " ".join(f"{name}={value:g}" for name, value in sorted(faults.items())) or "none"
