"""Transfers of packages, as people read them."""

from __future__ import annotations

from controller.device_schemas import Transfer
from controller.domain.transfers import TransferSum
from wire.codec import convert, to_builtins
from wire.console.progress import about_text, done_text, progress_text
from wire.console.sizes import bytes_text
from wire.console.text import plain_text
from wire.progress import TransferProgress


def phase_text(phase: str, transfer: Transfer | None, *, waits: bool = False) -> str:
    """Return the phase of an install, with how far its transfer is, if one runs or waits."""
    if transfer is None:
        return plain_text(phase)
    if waits:
        return f"{plain_text(phase)} {done_text(transfer.done_bytes, transfer.total_bytes)}"
    figures = convert(to_builtins(transfer), TransferProgress)
    return f"{plain_text(phase)} {progress_text(figures)}"


def share_text(phase: str, transfer: Transfer | None) -> str:
    """Return the same for a table: the phase, and how much of the transfer is done."""
    if transfer is None or transfer.total_bytes <= 0:
        return phase
    return f"{phase} {100 * transfer.done_bytes // transfer.total_bytes} %"


def sum_text(transfers: TransferSum) -> str:
    """Return how far the transfers of several devices are together.

    Args:
        transfers: Their figures.

    Returns:
        One line, such as `3 devices fetch: 30.1 of 126.0 MiB (23 %), 3.4 MiB/s together, about 30 s
        left for half of them and 2 min for the last`.
    """
    devices = "1 device fetches" if transfers.devices == 1 else f"{transfers.devices} devices fetch"
    parts = [f"{devices}: {done_text(transfers.done_bytes, transfers.total_bytes)}"]
    if transfers.rate_bytes_per_s > 0:
        together = "" if transfers.devices == 1 else " together"
        parts.append(f"{bytes_text(transfers.rate_bytes_per_s)}/s{together}")
    parts += [end] if (end := _end_text(transfers)) else []
    if transfers.silent:
        parts.append(f"no news of {transfers.silent}")
    return ", ".join(parts)


def _end_text(transfers: TransferSum) -> str:
    half_s, rest_s = transfers.half_rest_s, transfers.rest_s
    if transfers.devices == 1:
        return f"about {about_text(rest_s)} left" if rest_s else ""
    if not half_s:
        return f"about {about_text(rest_s)} left for the last" if rest_s else ""
    half = f"about {about_text(half_s)} left for half of them"
    return f"{half} and {about_text(rest_s)} for the last" if rest_s else half
