"""Fetches chunks from other devices of the site, by links that the controller signed.

Rules:
- A link leads to an IP address: no name is looked up. Nothing is encrypted; the chunks are checked.
- All devices of the answer are asked, in their order. One to which the blob is coming, or that
  others keep busy, says so, and is asked again, for as long as the settings allow.
- Who waits for others makes nobody wait: see `Coming`.
- Devices that begin at the same moment would find that nobody has anything. So the first time each
  waits a random part of some seconds and asks again: who comes first fetches, and the others see
  that. It does so again after each file that came from others: who brings them may be between two.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from agent.install.fetch.part import Part
from agent.install.fetch.places import REST_MAX_S, Places
from agent.install.fetch.sources import (
    AbsentError,
    Coming,
    Errand,
    LaterError,
    SourceError,
    SourceName,
    Ways,
)
from wire.clock import Clock
from wire.progress import PEER

CONNECT_S: Final = 3.0
"""A device of the same site that takes longer is away."""

RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
PAUSE_S: Final = 2.0
POLL_S: Final = 0.1


class _Said(msgspec.Struct):
    """What the other devices said, when each was asked once."""

    later: dict[str, float] = {}
    """By host: when it wants to be asked again, in seconds."""

    absent: bool = False
    """Whether one answered that it does not have the blob."""

    fault: SourceError | None = None


class PeerSource:
    """Brings chunks from other devices of the site.

    Args:
        ways: Knows the links.
        clock: For waiting and rests.
        coming: Where to say that a blob comes.
        wait_s: How long to wait for a blob that is coming to another device.
        least_bytes: A smaller blob is left to other sources: to ask for a link takes as long.
        came: Called with the size of what has come, useful or not.
        pause_s: Returns how long to wait when nobody has anything.
    """

    name: SourceName = PEER

    def __init__(
        self,
        ways: Ways,
        clock: Clock,
        coming: Coming,
        *,
        wait_s: float,
        least_bytes: int = 0,
        came: Callable[[int], None] = lambda _size: None,
        pause_s: Callable[[], float] = lambda: random.uniform(0.0, PAUSE_S),  # noqa: S311 - jitter
    ) -> None:
        self._ways = ways
        self._clock = clock
        self._coming = coming
        self._wait_s = wait_s
        self._least_bytes = least_bytes
        self._pause_s = pause_s
        self._has_paused = False
        self._places = Places(
            PEER, clock, pardoned=(AbsentError, LaterError), connect_s=CONNECT_S, came=came
        )

    def bring(self, part: Part, errand: Errand) -> None:
        """Bring what the other devices give; see `ChunkSource`.

        Raises:
            SourceError: They do not give the rest, or not in time.
        """
        waited_s = 0.0
        while part.blob.size_bytes >= self._least_bytes:
            said = self._ask_all(part, errand)
            if part.complete:
                self._has_paused = False
                return
            if said.later and waited_s < self._wait_s:
                rest_s = min(max(min(said.later.values()), RETRY_MIN_S), RETRY_MAX_S)
                rest_s = min(rest_s, self._wait_s - waited_s)
            elif said.absent and self._wait_s > 0 and not said.later and not self._has_paused:
                self._has_paused = True
                rest_s = self._pause_s()
            else:
                self._give_up(said)
                return
            waited_s += rest_s
            self._wait(rest_s, errand)

    def end(self) -> None:
        """Close the connection."""
        self._has_paused = False
        self._places.end()

    def wake(self) -> None:
        """Let a read that waits end at once, because the agent stops."""
        self._places.wake()

    def _ask_all(self, part: Part, errand: Errand) -> _Said:
        """Bring what lacks from one device after another."""
        said = _Said()
        ways = self._ways.of(part.blob.sha256, errand)
        peers = ways.peers if ways is not None else msgspec.UNSET
        for url in peers if isinstance(peers, tuple) else ():
            try:
                self._ask(checked(url, part.blob.sha256), part, errand)
            except AbsentError:
                said.absent = True
            except LaterError as exc:
                said.later[urlsplit(url).netloc] = exc.retry_s
            except SourceError as exc:
                said.fault = exc
            if part.complete:
                break
        return said

    def _ask(self, place: SplitResult, part: Part, errand: Errand) -> None:
        def progress(size_bytes: int, source: SourceName) -> None:
            self._coming.sha256 = part.blob.sha256
            errand.progress(size_bytes, source)

        try:
            self._places.bring(place, part, msgspec.structs.replace(errand, progress=progress))
        finally:
            self._coming.sha256 = ""

    def _wait(self, duration_s: float, errand: Errand) -> None:
        end_s = self._clock.monotonic_s() + duration_s
        while (rest_s := end_s - self._clock.monotonic_s()) > 0:
            errand.check()
            self._clock.sleep(min(rest_s, POLL_S))
        errand.check()

    def _give_up(self, said: _Said) -> None:
        """Say why the rest is to come in another way.

        Raises:
            SourceError: For a reason that is worth a line in the log.
        """
        if said.later and self._wait_s > 0:
            for host in said.later:  # or it could hold up each file for as long
                self._places.rest(host, REST_MAX_S)
            names = ", ".join(said.later)
            raise SourceError(f"{names} did not have it ready within {self._wait_s:g} s")
        if said.fault is not None:
            raise said.fault


def checked(url: str, sha256: str) -> SplitResult:
    """Split a link to a blob of another device.

    Args:
        url: The link.
        sha256: The blob.

    Returns:
        Its parts.

    Raises:
        SourceError: It is no such link, or leads to a name and not to an IP address.
    """
    try:
        place = urlsplit(url)
        host, port = place.hostname or "", place.port
        shown = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host  # noqa: PLR2004
    except ValueError:
        raise SourceError("the controller gave a link to a device that is none") from None
    is_plain = url.isascii() and all(" " < char <= "~" for char in url) and "%" not in host
    if not is_plain or url != f"http://{shown}:{port}/blobs/{sha256}?{place.query}":
        raise SourceError(f"the controller gave a link to the device at {host} that is none")
    return place
