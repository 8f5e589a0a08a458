"""Fetches chunks from other devices of the site, by links that the controller signed.

Rules:
- A link leads to an IP address: no name is looked up. Nothing is encrypted; the chunks are checked.
- All devices of the answer are asked, in their order. One to which the blob is coming, or that
  others keep busy, says so, and is asked again, for as long as the settings allow.
- A link that is refused, or whose answer ends too early, may have expired: the controller is asked
  once for another. Who fails with that one rests, and one who ends a second connection at once.
- Who rests is a device at an address: one that told another's address harms itself alone.
- Who waits for others makes nobody wait: see `Coming`.
- Devices that begin at the same moment would find that nobody has anything. So the first time each
  waits a random part of some seconds and asks again: who comes first fetches, and the others see
  that. It does so again after each file that came from others: who brings them may be between two.
"""

from __future__ import annotations

import ipaddress
import random
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from agent.install.fetch.connection import Bounds
from agent.install.fetch.part import Part
from agent.install.fetch.places import REST_MAX_S, Places
from agent.install.fetch.sources import (
    AbsentError,
    BusyError,
    Coming,
    EndedError,
    Errand,
    LaterError,
    RefusedLinkError,
    SourceError,
    SourceName,
    Ways,
)
from wire.clock import Clock
from wire.progress import PEER

NEAR: Final = Bounds(
    connect_s=3.0,
    head_s=3.0,
    head_bytes=4096,
    silent_s=10.0,
    window_s=30.0,
    least_bytes_per_s=32 * 1024,
)
"""A device of the same site that takes longer to answer is away, and its answers have little to
say. A quarter of 1 Mbit/s, over half a minute, is what a poor wireless network leaves to one of
several; from who gives less, 100 MB would take an hour."""

_PEER: Final = re.compile(r"(?:.*&)?peer=([^&]*)(?:&.*)?")

RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
PAUSE_S: Final = 2.0
POLL_S: Final = 0.1


class _Said(msgspec.Struct):
    """What the other devices said, when each was asked once."""

    later: dict[SplitResult, float] = {}
    """Who wants to be asked again, and when, in seconds."""

    stale: bool = False
    """Whether a link may have expired."""

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
        bounds: What another device may cost.
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
        bounds: Bounds = NEAR,
        pause_s: Callable[[], float] = lambda: random.uniform(0.0, PAUSE_S),  # noqa: S311 - jitter
    ) -> None:
        self._ways = ways
        self._clock = clock
        self._coming = coming
        self._wait_s = wait_s
        self._least_bytes = least_bytes
        self._pause_s = pause_s
        self._has_paused = False
        self._busy: set[str] = set()
        """Who ended a new connection at once."""

        self._places = Places(
            PEER,
            clock,
            pardoned=(AbsentError, LaterError, RefusedLinkError, EndedError),
            bounds=bounds,
            came=came,
            key=device_at,
        )

    def bring(self, part: Part, errand: Errand) -> None:
        """Bring what the other devices give; see `ChunkSource`.

        Raises:
            SourceError: They do not give the rest, or not in time.
        """
        end_s = self._clock.monotonic_s() + self._wait_s
        is_renewed = False
        while part.blob.size_bytes >= self._least_bytes:
            said = self._ask_all(part, errand, is_renewed=is_renewed)
            if part.complete:
                self._has_paused = False
                return
            left_s = end_s - self._clock.monotonic_s()
            if said.stale:
                is_renewed = True
                self._ways.forget(part.blob.sha256)
            elif said.later and left_s > 0:
                rest_s = min(max(min(said.later.values()), RETRY_MIN_S), RETRY_MAX_S)
                self._wait(min(rest_s, left_s), errand)
            elif said.absent and self._wait_s > 0 and not said.later and not self._has_paused:
                self._has_paused = True
                self._wait(self._pause_s(), errand)
            else:
                self._give_up(said)
                return

    def end(self) -> None:
        """Close the connection."""
        self._has_paused = False
        self._busy.clear()
        self._places.end()

    def wake(self) -> None:
        """Let a read that waits end at once, because the agent stops."""
        self._places.wake()

    def _ask_all(self, part: Part, errand: Errand, *, is_renewed: bool) -> _Said:
        """Bring what lacks from one device after another."""
        said = _Said()
        ways = self._ways.of(part.blob.sha256, errand)
        peers = ways.peers if ways is not None else msgspec.UNSET
        urls = peers if isinstance(peers, tuple) else ()
        for number, url in enumerate(urls, 1):
            try:
                place = checked(url, part.blob.sha256)
                following = "another device" if number < len(urls) else ""
                self._hear(place, said, part, errand, is_renewed=is_renewed, following=following)
            except SourceError as exc:
                said.fault = exc
            if part.complete:
                break
        return said

    def _hear(
        self,
        place: SplitResult,
        said: _Said,
        part: Part,
        errand: Errand,
        *,
        is_renewed: bool,
        following: str,
    ) -> None:
        """Ask one device, and note what it says.

        Raises:
            BusyError: It has ended a new connection at once before.
            RefusedLinkError: It refuses a link that is new.
            EndedError: It ended its answer again.
            SourceError: It does not give the rest.
        """
        try:
            self._ask(place, part, errand, following)
        except AbsentError:
            said.absent = True
        except BusyError as exc:
            if device_at(place) in self._busy:
                self._places.blame(place)
                raise
            self._busy.add(device_at(place))
            said.later[place] = exc.retry_s
        except LaterError as exc:
            said.later[place] = exc.retry_s
        except (RefusedLinkError, EndedError):
            if is_renewed:
                self._places.blame(place)
                raise
            said.stale = True

    def _ask(self, place: SplitResult, part: Part, errand: Errand, following: str) -> None:
        def progress(size_bytes: int, source: SourceName) -> None:
            self._coming.sha256 = part.blob.sha256
            errand.progress(size_bytes, source)

        try:
            telling = msgspec.structs.replace(errand, progress=progress)
            self._places.bring(place, part, telling, following=following)
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
            for place in said.later:  # or it could hold up each file for as long
                self._places.rest(place, REST_MAX_S)
            names = ", ".join(dict.fromkeys(place.netloc for place in said.later))
            raise SourceError(f"{names} did not have it ready within {self._wait_s:g} s")
        if said.fault is not None:
            raise said.fault


def device_at(place: SplitResult) -> str:
    """Return which device a link names, and where: another one may say that it is there, too."""
    named = _PEER.fullmatch(place.query)
    return f"{named[1] if named else ''}@{place.netloc}"


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
