"""How a release is shown, and what brings devices off one that is revoked."""

from __future__ import annotations

from controller.release_schemas import Release, RunningDevice
from wire.console.output import write, write_fields, write_table
from wire.console.sizes import bytes_text
from wire.console.text import local_time

MAX_NAMED = 15
"""Devices that one selector names: it has at most 1024 characters."""


def way_back(running: list[RunningDevice]) -> list[str]:
    """Return what brings devices off a release: sentences and commands.

    Args:
        running: The devices, with the rollouts that brought it.

    Returns:
        The lines; a command is indented.
    """
    back = sorted({d.rollout for d in running if d.rollout and d.previous})
    stay = [d for d in running if d.previous is None]
    lines = []
    if back:
        lines.append("To bring them back to what they had before:")
        lines += [f"  fleet rollout rollback {rollout}" for rollout in back]
    if stay:
        names = [d.device for d in stay]
        lines.append(f"To bring {len(stay)} without a published release before to another one:")
        lines += [
            "  fleet rollout create NAME:VERSION --selector "
            f"'id in ({','.join(names[start : start + MAX_NAMED])})'"
            for start in range(0, len(names), MAX_NAMED)
        ]
    return lines


def show_release(release: Release) -> None:
    """Write a release for people.

    Args:
        release: It, with its devices and deltas.
    """
    write_fields(
        [
            ("release", f"{release.name}:{release.version}"),
            ("digest", release.digest),
            ("state", release.state),
            ("size", bytes_text(release.size_bytes)),
            ("published", local_time(release.published_at_s)),
        ]
    )
    write()
    write_table(
        (
            "VARIANT", "RUNTIME", "PRECISION", "SIZE", "ACCURACY", "RETENTION", "P50 MS", "MEMORY",
            "PROFILES",
        ),
        [
            (
                v.name, v.runtime, v.precision, bytes_text(v.size_bytes), v.accuracy, v.retention,
                v.latency_p50_ms,
                None if v.peak_memory_bytes is None else bytes_text(v.peak_memory_bytes),
                v.profiles,
            )
            for v in release.variants
        ],
        minor=("MEMORY", "SIZE", "ACCURACY", "PRECISION"),
    )  # fmt: skip
    if release.running:
        write()
        show_running(release.running)
    if release.deltas:
        write()
        write_table(
            ("DELTA FROM", "SIZE", "OF", "SHARE"),
            [
                (
                    d.base_release, bytes_text(d.size_bytes), bytes_text(d.full_bytes),
                    f"{100 * d.size_bytes / d.full_bytes:.1f} %",
                )
                for d in release.deltas
            ],
        )  # fmt: skip


def show_running(running: list[RunningDevice]) -> None:
    """Write which devices run a release, and what they had before.

    Args:
        running: The devices.
    """
    write_table(
        ("RUNS ON", "ONLINE", "ROLLOUT", "BEFORE"),
        [(d.device, d.online, d.rollout, d.previous) for d in running],
    )
