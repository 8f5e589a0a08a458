"""Decides from which devices of its site a device is told to fetch a blob. Pure.

Rules:
- Those whose package has the blob come first, in an order that differs from device to device: a
  hash of both names (rendezvous hashing, Thaler and Ravishankar 1998) spreads the load.
- Where they are too few, those follow that fetch it now and asked for it before: the first of them
  will have it first. So of devices that begin at once one fetches from afar.
- Nobody waits in a circle. A device that fetches is told only to those who asked after it. Who was
  told as one that has a blob, and then asks for it all the same, is told no device that fetches it.
  Both are remembered for as long as a link works that was made from it.
- Memory is bounded, for all devices and for each. What is forgotten for lack of it, or with a
  restart, may let two devices wait for each other; each ends that after a bounded time.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

ASKED_S: Final = 600.0
"""So long a device that asked for a blob counts as one that fetches it. Devices ask again each
minute as long as they fetch."""

LINK_S: Final = 3600.0
"""How long a link to a peer works at most."""

REMEMBERED_S: Final = ASKED_S + LINK_S
"""So long the order is known: until the last link expires that was made from it."""

MAX_OF_BLOB: Final = 64
"""Devices of one site that are remembered for one blob; later ones are told of these."""

MAX_OF_DEVICE: Final = 1024
"""Blobs that are remembered for one device."""

MAX_ASKED: Final = 32_768
MAX_TOLD: Final = 32_768
"""Of all devices and blobs."""

MAX_EARLIER: Final = 64
"""Devices that fetch what one request asks for, which are looked up."""


class Device(NamedTuple):
    """A device that asks, or one that serves others and is online."""

    id: str
    site: str
    has: frozenset[str]
    """Those of the blobs in question that its active package has."""


@dataclass(slots=True)
class _Asked:
    """That a device asked for a blob."""

    number: int
    """Less than that of who asked for the first time later, also at another site."""

    site: str
    """Where it was last."""

    at_s: float
    """When it asked last; monotonic time."""

    has_lost: bool
    """Whether its active package should have it."""


class PeerChoice:
    """Whom devices are told, and who asked for which blob.

    Args:
        most: Peers for one blob.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._asked: OrderedDict[tuple[str, str], _Asked] = OrderedDict()
        """By blob and device; those that asked last come last."""

        self._at_site: dict[tuple[str, str], dict[str, _Asked]] = {}
        """The same by site and blob, then by device."""

        self._number = 0

        self._counts: Counter[str] = Counter()
        """How many blobs are remembered for each device."""

        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()
        """By blob and device: when it was told to another as one that has the blob."""

    def __len__(self) -> int:
        return len(self._asked) + len(self._told)

    def earlier(self, device: str, site: str, blobs: Sequence[str], now_s: float) -> list[str]:
        """Return who fetches now what a device asks for, and asked before; the first ones only.

        Args:
            device: Who asks.
            site: Where it is.
            blobs: What it asks for.
            now_s: Monotonic time.
        """
        found: dict[str, None] = {}
        for blob in blobs:
            found |= dict.fromkeys(self._before(device, site, blob, now_s))
            if len(found) >= MAX_EARLIER:
                break
        return list(found)[:MAX_EARLIER]

    def choose(
        self, device: Device, blobs: Sequence[str], neighbours: Sequence[Device], now_s: float
    ) -> dict[str, tuple[str, ...]]:
        """Say from whom a device is to fetch what it asks for.

        Args:
            device: Who asks.
            blobs: What it asks for, and may read.
            neighbours: The devices that may be told now, those of `earlier` among them.
            now_s: Monotonic time.

        Returns:
            By blob the names of devices, the best first; nothing for a blob that none has.
        """
        self._forget_old(now_s)
        others = {
            peer.id: peer
            for peer in neighbours
            if peer.site == device.site and peer.id != device.id
        }
        ranked = sorted(others, key=lambda peer: _rank(device.id, peer))
        places = {peer: place for place, peer in enumerate(ranked)}
        chosen: dict[str, tuple[str, ...]] = {}
        for blob in blobs:
            have = list(islice(self._having(blob, ranked, others), self._most))
            fetch: list[str] = []
            if len(have) < self._most and (blob, device.id) not in self._told:
                before = self._before(device.id, device.site, blob, now_s)
                fetch = [peer for peer in before if peer in others and peer not in have]
                fetch[1:] = sorted(fetch[1:], key=places.__getitem__)
            for peer in have:
                self._told[blob, peer] = now_s
                self._told.move_to_end((blob, peer))
            if peers := (*have, *fetch)[: self._most]:
                chosen[blob] = peers
        while len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        return chosen

    def note(self, device: Device, blobs: Sequence[str], now_s: float) -> None:
        """Remember that a device that serves others asked for blobs.

        Args:
            device: Who asks.
            blobs: What it asks for, and may read.
            now_s: Monotonic time.
        """
        self._forget_old(now_s)
        for blob in blobs:
            number = self._forget(blob, device.id)
            at_site = self._at_site.get((device.site, blob), {})
            if len(at_site) < MAX_OF_BLOB and self._counts[device.id] < MAX_OF_DEVICE:
                asked = _Asked(number, device.site, now_s, blob in device.has)
                self._asked[blob, device.id] = at_site[device.id] = asked
                self._at_site[device.site, blob] = at_site
                self._counts[device.id] += 1
        while len(self._asked) > MAX_ASKED:
            self._forget(*next(iter(self._asked)))

    def _having(
        self, blob: str, ranked: Sequence[str], others: Mapping[str, Device]
    ) -> Iterator[str]:
        """Yield who has a blob; not those who asked for it although they should have it."""
        for peer in ranked:
            if blob in others[peer].has:
                asked = self._asked.get((blob, peer))
                if asked is None or not asked.has_lost:
                    yield peer

    def _before(self, device: str, site: str, blob: str, now_s: float) -> list[str]:
        """Return who fetches a blob now and asked for it before a device, in that order."""
        own = self._asked.get((blob, device))
        found = [
            (asked.number, peer)
            for peer, asked in self._at_site.get((site, blob), {}).items()
            if now_s - asked.at_s < ASKED_S and (own is None or asked.number < own.number)
        ]
        return [peer for _, peer in sorted(found)]

    def _forget_old(self, now_s: float) -> None:
        while self._asked and now_s - next(iter(self._asked.values())).at_s >= REMEMBERED_S:
            self._forget(*next(iter(self._asked)))
        while self._told and now_s - next(iter(self._told.values())) >= LINK_S:
            self._told.popitem(last=False)

    def _forget(self, blob: str, device: str) -> int:
        """Forget that a device asked for a blob; return its number, or a new one."""
        asked = self._asked.pop((blob, device), None)
        if asked is None:
            self._number += 1
            return self._number
        at_site = self._at_site[asked.site, blob]
        del at_site[device]
        if not at_site:
            del self._at_site[asked.site, blob]
        self._counts[device] -= 1
        if not self._counts[device]:
            del self._counts[device]
        return asked.number


def _rank(device: str, peer: str) -> bytes:
    return hashlib.sha256(f"{device}\n{peer}".encode()).digest()
