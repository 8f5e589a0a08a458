"""How fast a package gets to devices over MQTT, and at what cost, beside what one would do instead.

A controller and a Mosquitto are processes with the settings that we ship. A device is the agent's
fetcher with its connection, and each is a light process of its own. All is on loopback, in clear
text where a row does not say TLS, with the files in memory, so that neither a disk nor TLS hides
the transfer. Ours checks every chunk, then the whole file, against signed digests and syncs it; no
peer does. What the controller sent is what the broker's process read, with the few requests of the
devices. The processor time of all devices stands beside the controller's: with enough of them the
three together are the whole machine's, and the figure says what this machine can do.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.harness import Row, main, not_measured
from benchmarks.transfers.links import links
from benchmarks.transfers.many_devices import beside_busy_processes, many_devices
from benchmarks.transfers.one_device import one_device, over_tls
from benchmarks.transfers.resumed import resumed
from benchmarks.transfers.rig import Rig, running_rig, working_folder
from wire.package.index import CHUNK_BYTES

LARGE_BYTES: Final = 20_000_000
SMALL_BYTES: Final = 5_000_000
LINK_CHUNKS: Final = {16_000: 10, 64_000: 24, 256_000: 96, 4_000_000: 480}
QUICK_LINK_CHUNKS: Final = {64_000: 9}
"""The size of the file by the link's rate in bytes per second: some 15 to 80 s."""

MOST: Final = 200
QUICK_MOST: Final = 50
MEMORY_MB: Final = 50.0
USEFUL: Final = 0.95
LAST: Final = 1.2
LIMIT_S: Final = 60.0
QUICK_LIMIT_S: Final = 12.0
LEFT_OUT: Final = (
    "one device, 20 MB",
    "one device over TLS",
    "10 and 200 devices at once",
    "50 devices at once, 2 busy processes per core",
    "links of 16, 256 and 4,000 KB/s",
)


def measure(quick: bool) -> list[Row]:
    """Measure everything, or in a minute the most telling part.

    Args:
        quick: Fewer devices, links and rounds.

    Returns:
        The rows.
    """
    with working_folder() as folder:
        if quick:
            with _rig(folder / "all", _sizes(QUICK_LINK_CHUNKS), QUICK_MOST) as rig:
                rows = _few(rig, "small", rounds=3, resumed_rounds=1)
                rows += _links(rig, QUICK_LINK_CHUNKS)
                rows += _many(rig, {QUICK_MOST: 1}, limit_s=QUICK_LIMIT_S)
            return rows + [not_measured(name, "left out by --quick") for name in LEFT_OUT]
        with _rig(folder / "few", _sizes(LINK_CHUNKS), 2 * len(LINK_CHUNKS)) as rig:
            rows = _few(rig, "large", rounds=9, resumed_rounds=5)
            with _rig(folder / "tls", {"large": LARGE_BYTES}, 1, tls=True) as tls:
                rows += over_tls(rig, tls, "large", rounds=5)
            rows += _links(rig, LINK_CHUNKS)
        small = {"small": SMALL_BYTES}
        with _rig(folder / "many", small, 50) as rig:
            rows += _many(rig, {10: 3, 50: 3}, limit_s=LIMIT_S)
        with _rig(folder / "busy", small, 50) as rig, rig.crowd(rig.devices) as crowd:
            rows += beside_busy_processes(
                rig, crowd, "small", 50, rounds=1, limit_s=LIMIT_S, at_most=LAST
            )
        with _rig(folder / "most", small, MOST) as rig:
            return rows + _many(rig, {MOST: 1}, limit_s=LIMIT_S)


def _sizes(link_chunks: dict[int, int]) -> dict[str, int]:
    """Return the files that all sections of one rig need, by name."""
    of_links = {_of_link(rate): count * CHUNK_BYTES for rate, count in link_chunks.items()}
    return {"large": LARGE_BYTES, "small": SMALL_BYTES} | of_links


def _of_link(rate: int) -> str:
    return f"link-{rate}"


@contextlib.contextmanager
def _rig(
    folder: Path, sizes_bytes: dict[str, int], devices: int, *, tls: bool = False
) -> Iterator[Rig]:
    """Run a rig of its own: requests that one section left behind must not reach another one."""
    folder.mkdir()
    with running_rig(folder, sizes_bytes, devices, tls=tls) as rig:
        yield rig


def _few(rig: Rig, blob: str, *, rounds: int, resumed_rounds: int) -> list[Row]:
    """Measure one device at a time."""
    return [
        *one_device(rig, blob, rounds=rounds, memory_mb=MEMORY_MB, useful=USEFUL),
        *resumed(rig, "large", rounds=resumed_rounds),
    ]


def _links(rig: Rig, link_chunks: dict[int, int]) -> list[Row]:
    """Measure slow links; they may leave requests behind, so they come after what counts bytes."""
    return links(rig, {rate: _of_link(rate) for rate in link_chunks}, useful=USEFUL)


def _many(rig: Rig, counts: dict[int, int], *, limit_s: float) -> list[Row]:
    """Measure devices that compete."""
    with rig.crowd(rig.devices) as crowd:
        return many_devices(
            rig, crowd, "small", counts,
            limit_s=limit_s, at_most={50: LAST}, memory_mb=MEMORY_MB, useful=USEFUL,
        )  # fmt: skip


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process of ours is left
    sys.exit(main("Packages on their way to devices over MQTT", measure))
