"""From what was counted to rows. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.harness import Row, against, alone
from benchmarks.transfers.orders import Result

MB: Final = 1e6
KB: Final = 1e3
MS_PER_S: Final = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One transfer of a file to some devices at the same time."""

    began_s: float
    results: tuple[Result, ...]
    sent_bytes: int = 0
    """What the broker received: from the controller, and the few requests of the devices."""

    broker_peak_mb: float = 0.0
    controller_cpu_s: float = 0.0
    broker_cpu_s: float = 0.0
    devices_cpu_s: float = 0.0

    @property
    def last_s(self) -> float:
        """The time until the last device had everything."""
        return max(result.ended_s for result in self.results) - self.began_s

    @property
    def useful_bytes(self) -> int:
        """What arrived and was new."""
        return sum(result.useful_bytes for result in self.results)

    @property
    def asked_bytes(self) -> int:
        """What devices asked for, each time counted."""
        return sum(result.asked_bytes for result in self.results)

    @property
    def faults(self) -> list[str]:
        """Why devices have not everything."""
        return [result.fault for result in self.results if result.fault]

    def ms_per_mb(self, cpu_s: float) -> float:
        """Return processor time by useful data.

        Args:
            cpu_s: Of a process in this run.
        """
        return MS_PER_S * cpu_s / max(self.useful_bytes / MB, 1 / MB)


def rate_mb_per_s(run: Run) -> float:
    """Return how much useful data arrived in a second at all devices together.

    Args:
        run: What was counted.
    """
    return run.useful_bytes / MB / run.last_s


def incomplete(
    name: str, runs: Sequence[Run], *, unit: str, peer: str = "", aim: str = ""
) -> Row | None:
    """Return the row of runs of which one did not complete, or None if all did.

    Args:
        name: What was measured.
        runs: The rounds.
        unit: Of the figure.
        peer: Beside whom.
        aim: What is missed by it.
    """
    bad = next((run for run in runs if run.faults), None)
    if bad is None:
        return None
    why = f"{len(bad.faults)} of {len(bad.results)} devices incomplete: {bad.faults[0]}"
    return Row(
        name=name, value=None, unit=unit, peer=peer, spread=why, aim=aim, met=False if aim else None
    )


def last_of_many(
    name: str, many: Sequence[Run], one: Sequence[Run], *, at_most: float | None
) -> Row:
    """Return the row that compares the last of n devices with n times one device.

    Args:
        name: What was measured.
        many: The rounds with all devices.
        one: Rounds of one device, as many for each of the others.
        at_most: Aim for the ratio.
    """
    count, each = len(many[0].results), len(one) // len(many)
    peer = f"{count} x the time of one device"
    aim = "" if at_most is None else f"ratio <= {at_most:g}"
    if (row := incomplete(name, [*many, *one], unit="s", peer=peer, aim=aim)) is not None:
        return row
    alone_s = [
        count * statistics.median(run.last_s for run in one[number * each : (number + 1) * each])
        for number in range(len(many))
    ]
    return against(
        name, [run.last_s for run in many], alone_s, unit="s", peer=peer, at_most=at_most
    )


def costs(name: str, runs: Sequence[Run], *, useful: float | None, memory_mb: float) -> list[Row]:
    """Return the rows of what a transfer costs.

    Args:
        name: What was measured.
        runs: The rounds.
        useful: Aim for the share of what was sent that was useful.
        memory_mb: Aim for the broker's peak.
    """
    times = {
        "the controller": [run.ms_per_mb(run.controller_cpu_s) for run in runs],
        "the broker": [run.ms_per_mb(run.broker_cpu_s) for run in runs],
        "all devices": [run.ms_per_mb(run.devices_cpu_s) for run in runs],
    }
    return [
        against(
            f"{name}: useful bytes", [run.useful_bytes / MB for run in runs],
            [run.sent_bytes / MB for run in runs],
            unit="MB", peer="sent by the controller", at_least=useful,
        ),
        alone(
            f"{name}: asked for again",
            [(run.asked_bytes - run.useful_bytes) / MB for run in runs], unit="MB",
        ),
        alone(
            f"{name}: broker's peak memory", [run.broker_peak_mb for run in runs],
            unit="MB", at_most=memory_mb,
        ),
        *(
            alone(f"{name}: processor time of {who}", values, unit="ms/MB")
            for who, values in times.items()
        ),
    ]  # fmt: skip


def link_share(
    name: str, run: Run, rate_bytes_per_s: float, *, at_least: float | None = None
) -> Row:
    """Return the row of what of a link's rate was useful.

    Args:
        name: What was measured.
        run: One device's transfer; what it got until its limit counts if it did not complete.
        rate_bytes_per_s: The link's.
        at_least: Aim for the share.
    """
    reached = run.useful_bytes / run.last_s
    share = reached / rate_bytes_per_s
    return Row(
        name=name,
        value=reached / KB,
        unit="KB/s",
        peer="the link's rate",
        peer_value=rate_bytes_per_s / KB,
        ratio=share,
        spread=run.faults[0] if run.faults else "one round",
        aim="" if at_least is None else f"ratio >= {at_least:g}",
        met=None if at_least is None else share >= at_least,
    )


def needed_of_asked(name: str, run: Run, *, at_least: float) -> Row:
    """Return the row of what devices got of what they asked for.

    Args:
        name: What was measured.
        run: The transfer; it need not be complete.
        at_least: Aim for the ratio.
    """
    return against(
        name, [run.useful_bytes / MB], [max(run.asked_bytes, 1) / MB],
        unit="MB", peer="asked for", at_least=at_least,
    )  # fmt: skip


def sent_again_percent(sent_bytes: int, size_bytes: int) -> float:
    """Return what was sent beyond a file's size, in percent of it.

    Args:
        sent_bytes: To the device, in all attempts.
        size_bytes: The file's.
    """
    return 100 * (sent_bytes - size_bytes) / size_bytes
