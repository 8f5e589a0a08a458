"""The transfers that run now: the newest figures of each device that fetches a package.

Rules:
- They are in memory alone. A device sends new ones within seconds, so a restart of the controller
  loses nothing that lasts, and thousands of devices do not cost a write each for each report.
- There is at most one for each model of a device, and it goes when its fetch ends.
- A report that comes late changes nothing.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import msgspec

from controller.device_schemas import Transfer
from controller.domain.transfers import is_fetching, transfer_of
from wire.clock import Clock
from wire.codec import convert, to_builtins
from wire.installs import InstallReport
from wire.progress import TransferProgress


class _News(NamedTuple):
    figures: TransferProgress
    at_s: float
    boot_id: object
    sequence: object


class Transfers:
    """What devices reported last of their transfers; usable from several threads.

    Args:
        clock: How old the news is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._news: dict[str, dict[str, _News]] = {}
        self._lock = threading.Lock()

    def note(self, report: InstallReport, model: str) -> None:
        """Take a report about a model of an enrolled device that was not refused."""
        with self._lock:
            known = self._news.get(report.device, {})
            if not is_fetching(report):
                known.pop(model, None)
                if not known:
                    self._news.pop(report.device, None)
            elif not _is_older(report, known.get(model)):
                self._news.setdefault(report.device, known)[model] = _News(
                    figures=transfer_of(report),
                    at_s=self._clock.monotonic_s(),
                    boot_id=report.boot_id,
                    sequence=report.sequence,
                )

    def of(self, device: str, model: str) -> TransferProgress | None:
        """Return the newest figures of a model with their age; None if it is not fetched."""
        with self._lock:
            news = self._news.get(device, {}).get(model)
        if news is None:
            return None
        age_s = max(0.0, self._clock.monotonic_s() - news.at_s)
        return msgspec.structs.replace(news.figures, news_age_s=age_s)

    def runs(self, device: str) -> bool:
        """Tell whether a device fetches a package, and was heard of late."""
        with self._lock:
            models = list(self._news.get(device, ()))
        found = [self.of(device, model) for model in models]
        return any(progress is not None and not progress.silent for progress in found)


def shown_transfer(progress: TransferProgress | None) -> Transfer | None:
    """Return figures as the API shows them."""
    if progress is None:
        return None
    return convert(to_builtins(progress) | {"rest_s": progress.rest_s}, Transfer)


def _is_older(report: InstallReport, news: _News | None) -> bool:
    if news is None or report.boot_id != news.boot_id:
        return False
    here, there = report.sequence, news.sequence
    return isinstance(here, int) and isinstance(there, int) and here < there
