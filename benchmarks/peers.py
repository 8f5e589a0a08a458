"""What devices that fetch from each other save a site, and what serving costs one of them.

A site of eight agents shares one thin uplink, on which a release comes once with neighbours and
eight times without. Serving is measured apart, in a process that does nothing else, beside nginx.
All is on loopback: the local network costs nothing here.
"""

from __future__ import annotations

import sys
from typing import Final

from benchmarks.harness import Row, main
from benchmarks.transfers.neighbour_costs import neighbour_costs
from benchmarks.transfers.one_uplink import one_uplink

DEVICES: Final = 8
BYTES_PER_S: Final = 256_000
SIZE_BYTES, QUICK_SIZE_BYTES = 2_000_000, 250_000
ROUNDS: Final = 3
SERVED_BYTES, QUICK_SERVED_BYTES = 64_000_000, 4_000_000
SERVED_ROUNDS: Final = 3


def measure(quick: bool) -> list[Row]:
    """Measure a site, and one device that serves.

    Args:
        quick: One round, with less to bring.

    Returns:
        The rows.
    """
    size_bytes = QUICK_SIZE_BYTES if quick else SIZE_BYTES
    return [
        *one_uplink(DEVICES, size_bytes, BYTES_PER_S, rounds=1 if quick else ROUNDS),
        *neighbour_costs(
            QUICK_SERVED_BYTES if quick else SERVED_BYTES, rounds=1 if quick else SERVED_ROUNDS
        ),
    ]


if __name__ == "__main__":
    sys.exit(main("Devices of one site that fetch from each other", measure))
