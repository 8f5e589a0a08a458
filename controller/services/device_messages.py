"""Takes what devices say of themselves: greetings, presence, reports and refusals, several at once.

Rules:
- What waits together is recorded in one transaction, in which a device has one message. Those of a
  device stay in their order.
- A message that fails takes no other with it: all are rolled back, and recorded one by one. So are
  those that would wait for another writer for long.
- What follows, such as an answer, is done when the message is recorded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from controller.domain.device_text import clean
from controller.domain.faults import Faults
from controller.domain.peer_urls import Network, why_refused
from controller.services.director import Director
from controller.services.metadata import FleetMetadata
from controller.services.own_messages import own_message
from controller.services.transfers import Transfers
from controller.store import desired, device_status, hellos, reports
from controller.store.database import Database, Transaction
from controller.store.device_status import DeviceStatus
from controller.store.row_changes import RowChanges
from wire.clock import Clock
from wire.installs import InstallReport, Refusal
from wire.metadata import MetadataVersions
from wire.presence import Hello, Presence
from wire.profile import checked_profile
from wire.topics import UpKind

AT_ONCE: Final = 100
"""Messages in one transaction: it holds up other writers for some 20 ms."""

MAX_LOGGED_CHARS: Final = 300

After: TypeAlias = Callable[[], None]
"""What is done when a message is recorded."""


class Greeting(NamedTuple):
    """A hello that is recorded, which is answered together with others."""

    hello: Hello
    is_to_be_told: bool
    """Whether the device is sent its desired state in any case."""


Record: TypeAlias = Callable[[Transaction, DeviceStatus | None], After | Greeting | None]
"""Records a message of a device; of one that is not enrolled nothing is known."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Said:
    """A message that is read and not yet recorded."""

    device: str
    topic: str
    record: Record


class DeviceMessages:
    """Takes what devices say of themselves.

    Args:
        database: The control state.
        director: Answers a hello.
        transfers: Where the figures of transfers go.
        peer_networks: Where devices may serve others.
        clock: Wall time.
        counts: How many messages were ignored or refused, by code.
        refuse: Counts and logs a fault: its code, where it is, and what it is.
        metadata: Answers a hello before the director does; None for a fleet without it.
    """

    def __init__(
        self,
        database: Database,
        director: Director,
        transfers: Transfers,
        peer_networks: Sequence[Network],
        clock: Clock,
        counts: Counter[str],
        refuse: Callable[[str, str, str], None],
        *,
        metadata: FleetMetadata | None,
    ) -> None:
        self._database = database
        self._director = director
        self._transfers = transfers
        self._peer_networks = peer_networks
        self._peer_faults = Faults()
        self._clock = clock
        self._counts = counts
        self._refuse = refuse
        self._metadata = metadata
        self._readers: dict[UpKind, Callable[[str, bytes], Record]] = {
            "hello": self._hello,
            "presence": self._presence,
            "report": self._report,
            "refusal": self._refusal,
        }

    def takes(self, kind: UpKind) -> bool:
        """Tell whether a kind of message is taken here."""
        return kind in self._readers

    def read(self, kind: UpKind, device: str, topic: str, payload: bytes) -> Said:
        """Read a message.

        Args:
            kind: What it is, which is taken here.
            device: Who sent it.
            topic: Where it came.
            payload: As it came.

        Returns:
            What `take` takes.

        Raises:
            WireFormatError: It is malformed, names another device or is impossible.
        """
        return Said(device, topic, self._readers[kind](device, payload))

    def take(self, said: Sequence[Said], failed: Callable[[str, Exception], None]) -> None:
        """Record messages in their order, and do what follows from each.

        Args:
            said: The messages.
            failed: Told of the topic of a message that could not be taken, and why.
        """
        together: dict[str, Said] = {}
        for one in said:
            if one.device in together or len(together) >= AT_ONCE:
                self._take(list(together.values()), failed)
                together = {}
            together[one.device] = one
        self._take(list(together.values()), failed)

    def _take(self, said: Sequence[Said], failed: Callable[[str, Exception], None]) -> None:
        """Record messages of different devices in one transaction, or each in its own."""
        if not said:
            return
        try:
            follows = self._recorded(said)
        except Exception as exc:  # noqa: BLE001 - one message must not stop the others
            if len(said) == 1:
                failed(said[0].topic, exc)
                return
            for one in said:  # whose fault was it?
                self._take([one], failed)
            return
        greetings = [each for each in follows if isinstance(each, Greeting)]
        try:
            for each in follows:
                if callable(each):
                    each()
            self._answer(greetings)
        except Exception as exc:  # noqa: BLE001 - as above; the devices are told again
            failed(said[0].topic, exc)

    def _recorded(self, said: Sequence[Said]) -> list[After | Greeting | None]:
        """Record messages of different devices; return what follows from each."""
        changes = RowChanges()
        with self._database.transaction() as transaction:
            devices = [one.device for one in said]
            device_status.take_turns(transaction, devices)
            known = device_status.find_all(transaction, devices, changes)
            follows = [one.record(transaction, known.get(one.device)) for one in said]
            changes.write(transaction)
        return follows

    def _hello(self, device: str, payload: bytes) -> Record:
        hello = own_message(payload, Hello, device)
        checked_profile(hello.profile)

        def record(transaction: Transaction, known: DeviceStatus | None) -> After | Greeting:
            if known is None:
                return lambda: self._refuse("ingest.stranger", device, "not enrolled")
            peer_url, now_s = self._peer_url(hello), self._clock.now_s()
            answer = hellos.take_hello(transaction, known, hello, peer_url=peer_url, now_s=now_s)
            return Greeting(hello, answer)

        return record

    def _answer(self, greetings: Sequence[Greeting]) -> None:
        """Send devices what they lack of the metadata and, if need be, their desired states."""
        asked: dict[str, MetadataVersions] = {}
        told = {each.hello.device for each in greetings if each.is_to_be_told}
        for hello, _ in greetings:
            versions = hello.metadata
            if self._metadata is not None and not isinstance(versions, msgspec.UnsetType):
                asked[hello.device] = versions
                if versions.lacks_desired:
                    told.add(hello.device)
        devices = sorted(told | asked.keys())
        if not devices:
            return
        with self._database.reading() as transaction:
            found = {each.device: each for each in desired.documents(transaction, devices)}
        if self._metadata is not None:
            for device, versions in asked.items():
                wanted = found[device].desired.models if device in found else ()
                self._metadata.greet(device, versions, [model.name for model in wanted])
        self._director.send([found[device] for device in devices if device in told & found.keys()])

    def _peer_url(self, hello: Hello) -> str | None:
        """Return where a device serves others; None if nowhere, or if that is no address.

        One outside the networks of today is kept: it is told to nobody, but the operator sees it.
        """
        url = hello.peer_url
        if isinstance(url, msgspec.UnsetType):
            return None
        fault = why_refused(url, self._peer_networks)
        if fault and self._peer_faults.is_first(hello.device, self._clock.monotonic_s()):
            _log.warning("the address of device %s for its peers %s", hello.device, fault)
        return None if why_refused(url, None) else url

    def _presence(self, device: str, payload: bytes) -> Record:
        presence = own_message(payload, Presence, device)

        def record(_transaction: Transaction, known: DeviceStatus | None) -> None:
            if known is not None:
                hellos.take_presence(known.device, presence, now_s=self._clock.now_s())

        return record

    def _report(self, device: str, payload: bytes) -> Record:
        report = own_message(payload, InstallReport, device)

        def record(transaction: Transaction, known: DeviceStatus | None) -> After:
            model = None
            if known is not None:
                now_s = self._clock.now_s()
                model = reports.take_report(transaction, known, report, now_s=now_s)
            return lambda: self._note(report, model)

        return record

    def _note(self, report: InstallReport, model: str | None) -> None:
        if model is not None:
            self._transfers.note(report, model)
        else:
            self._counts["ingest.stale"] += 1
            _log.debug("a report of %s for revision %s is ignored", report.device, report.revision)

    def _refusal(self, device: str, payload: bytes) -> Record:
        refusal = own_message(payload, Refusal, device)

        def record(transaction: Transaction, known: DeviceStatus | None) -> After | None:
            if known is None:
                return lambda: self._refuse("ingest.stranger", device, "not enrolled")
            sent = desired.documents(transaction, [device])
            ours = self._director.is_newest(sent, refusal.sha256)
            now_s = self._clock.now_s()
            if not reports.take_refusal(known, refusal, ours=ours, now_s=now_s):
                return None
            shown = clean(refusal.detail, MAX_LOGGED_CHARS)
            return lambda: _log.warning("device %s refuses a desired state: %s", device, shown)

        return record
