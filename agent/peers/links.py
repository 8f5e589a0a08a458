"""Checks links, and remembers those that were valid: a device asks with the same one many times."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from wire.errors import SignatureError
from wire.trust.peer_links import AGAIN, PeerLink, check_peer_link
from wire.trust.root import Trust

MAX_LINKS: Final = 64
"""Of up to 512 bytes. A place is worth the check of one signature."""


class CheckedLinks:
    """The links to one device. For any thread.

    Args:
        trust: Who may sign links.
        device: The device that checks.
    """

    def __init__(self, trust: Trust, device: str) -> None:
        self._trust = trust
        self._director = trust.director
        self._device = device
        self._lock = threading.Lock()
        self._valid: OrderedDict[tuple[str, str], PeerLink] = OrderedDict()

    def check(self, query: str, sha256: str, now_s: float) -> PeerLink:
        """Check a link.

        Args:
            query: What stands after the `?`.
            sha256: The blob that is asked for.
            now_s: Wall time.

        Returns:
            Whose link it is, and until when.

        Raises:
            SignatureError: It is no valid link for this blob from this device.
        """
        director = self._trust.director
        with self._lock:
            if director != self._director:  # a key that was revoked vouches for nothing more
                self._valid.clear()
                self._director = director
            known = self._valid.get((query, sha256))
        if known is not None and now_s < known.until_s:
            return known
        if known is not None:
            raise SignatureError("this link has expired", remedy=AGAIN)
        link = check_peer_link(director, query, peer=self._device, sha256=sha256, now_s=now_s)
        with self._lock:
            self._valid[query, sha256] = link
            while len(self._valid) > MAX_LINKS:
                self._valid.popitem(last=False)
        return link
