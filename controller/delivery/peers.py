"""Tells devices from which neighbours they can fetch the files of their release, by signed links.

Rules:
- A device is told only devices of its own site that are enrolled and online, whose address lies in
  the networks of today's settings.
- What a device has is what its kind keeps of the packages that it says are active, each once all
  of it is there.
- Files of packages alone come from peers: no deltas, which devices do not keep, and no signed
  indices.
- A link is a secret. No log gets one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from controller.delivery.packages import Packages
from controller.domain.device_kinds import profile_of
from controller.domain.peer_urls import why_refused
from controller.domain.peers import LINK_S, Device, PeerChoice
from controller.peer_settings import PeersConfig
from controller.store import peers
from controller.store.database import Database
from controller.store.deltas import Named
from controller.store.peers import KindText
from wire.clock import Clock
from wire.trust.envelope import SigningKey
from wire.trust.peer_links import peer_path

MAX_KEPT: Final = 128
"""Releases and kinds of devices for which is known which files such a device keeps."""


class Peers:
    """Makes links between devices. One thread uses it.

    Args:
        database: The control state.
        packages: What releases consist of.
        config: The settings, with a label.
        key: The director's private key.
        valid_s: How long links work, within `LINK_S`.
        clock: Wall time for links, durations.
    """

    def __init__(
        self,
        database: Database,
        packages: Packages,
        config: PeersConfig,
        key: SigningKey,
        valid_s: int,
        clock: Clock,
    ) -> None:
        self._database = database
        self._packages = packages
        self._label = config.label or ""
        self._networks = config.allowed()
        self._key = key
        self._valid_s = min(valid_s, int(LINK_S))
        self._clock = clock
        self._choice = PeerChoice(config.most)
        self._files: OrderedDict[tuple[str, KindText], frozenset[str]] = OrderedDict()

    def offer(self, device: str, blobs: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return links to neighbours that have blobs, or fetch them now.

        Args:
            device: Who asks.
            blobs: What it asks for, and may read.

        Returns:
            By blob the links, the best first.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.monotonic_s()
        with self._database.reading() as transaction:
            asking = peers.asking(transaction, device, self._label)
            if asking is None:
                return {}
            files = self._files_of_all(asking.wanted, asking.kind)
            wanted = [sha256 for sha256 in blobs if sha256 in files]
            if not wanted:
                return {}
            near = peers.neighbours(
                transaction,
                device,
                label=self._label,
                site=asking.site,
                blobs=wanted,
                fetching=self._choice.earlier(device, asking.site, wanted, now_s),
            )
        asks = Device(device, asking.site, self._files_of_all(asking.runs, asking.kind))
        urls = {each.id: each.peer_url for each in near if self._is_allowed(each.peer_url)}
        others = [
            Device(each.id, asking.site, self._files_of_all(each.runs, each.kind))
            for each in near
            if each.id in urls
        ]
        chosen = self._choice.choose(asks, wanted, others, now_s)
        if asking.peer_url is not None and self._is_allowed(asking.peer_url):
            self._choice.note(asks, wanted, now_s)
        until_s = int(self._clock.now_s()) + self._valid_s
        return {
            sha256: tuple(
                urls[peer]
                + peer_path(self._key, device=device, peer=peer, sha256=sha256, until_s=until_s)
                for peer in found
            )
            for sha256, found in chosen.items()
        }

    def _is_allowed(self, url: str) -> bool:
        """Tell whether an address that was kept with other settings may still be told."""
        return not why_refused(url, self._networks)

    def _files_of_all(self, releases: Sequence[Named], kind: KindText) -> frozenset[str]:
        """Return the digests of the files that a device of a kind keeps of some releases."""
        return frozenset[str]().union(*(self._files_of(release, kind) for release in releases))

    def _files_of(self, release: Named, kind: KindText) -> frozenset[str]:
        """Return the digests of the files that a device of a kind keeps of a release."""
        known = self._files.get((release.digest, kind))
        if known is not None:
            self._files.move_to_end((release.digest, kind))
            return known
        package = self._packages.get(release)
        if package is None:
            return frozenset()
        profile = profile_of(kind.profile, kind.runtimes)
        found = frozenset(entry.sha256 for entry in package.files_on(profile))
        self._files[release.digest, kind] = found
        while len(self._files) > MAX_KEPT:
            self._files.popitem(last=False)
        return found
