"""The director: sends each device its signed desired state until the device has accepted it.

The director is named after the role in the trust root whose key signs desired states.

Rules:
- A desired state is saved before it is signed and published; this module saves nothing.
- Publishing happens outside every transaction. A message may be lost, so it is repeated: at a
  device's hello, and while a device that is online lags behind.
- The director sends no revoked release, and nothing to a device that is not enrolled.
- A device whose agent has one model gets nothing while it should run several. The log says so.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from controller.device_schemas import SignedDesired
from controller.domain.faults import Faults
from controller.errors import ConflictError
from controller.services.pace import Pace
from controller.services.transfers import Transfers
from controller.store import desired, lagging
from controller.store.database import Database
from controller.store.desired import Document
from wire import topics
from wire.clock import Clock
from wire.codec import sha256_hex
from wire.desired import DESIRED_PAYLOAD_TYPE, desired_to_json
from wire.errors import WireFormatError
from wire.trust.envelope import SigningKey, seal

RESEND_EVERY_S = 15.0
MAX_RESENT = 500
"""The greatest number of devices that one pass reminds; the next pass reminds others."""

DESIRED_STEPS = 4
MAX_MARKS = 64
"""How many are remembered: a device may answer to one of some days ago."""

ONE_MODEL = "update the agent, or take the others away with `fleet model remove`"

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """The part of a transport that sends."""

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        """Hand a message over; False when it was dropped."""
        ...


class Timely(Protocol):
    """Knows how new what is signed now is."""

    @property
    def timestamp(self) -> int:
        """The version of the newest timestamp of trusted metadata."""
        ...

    @property
    def desired_s(self) -> float:
        """How long a desired state counts."""
        ...


class Mark(NamedTuple):
    """What is added to a document when it is sent."""

    expires_at_s: float
    timestamp: int


class Director:
    """Publishes desired states.

    Args:
        database: Where the desired states are.
        publisher: The way to the devices.
        transfers: Which devices fetch, and were heard of late.
        key: The director's private key.
        clock: Wall time and durations.
        metadata: Says how new a desired state is; None for a fleet without trusted metadata.
    """

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        transfers: Transfers,
        key: SigningKey,
        clock: Clock,
        *,
        metadata: Timely | None = None,
    ) -> None:
        self._metadata = metadata
        self._marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self._database = database
        self._publisher = publisher
        self._transfers = transfers
        self._key = key
        self._clock = clock
        self._sent_at_s: dict[str, float] = {}
        self._unsent = Faults()
        self._pace = Pace(clock)
        self._lock = threading.Lock()

    def publish(self, devices: Sequence[str]) -> int:
        """Send devices their desired states.

        Args:
            devices: Which devices.

        Returns:
            How many were handed to the broker.

        Raises:
            DatabaseError: The database does not answer.
        """
        if not devices:
            return 0
        with self._database.reading() as transaction:
            documents = desired.documents(transaction, devices)
        return self.send(documents)

    def send(self, documents: Sequence[Document]) -> int:
        """Send devices their desired states, which have just been read.

        Args:
            documents: What they should run.

        Returns:
            How many were handed to the broker.
        """
        tried = {item.device: self._send(item) for item in documents}
        done = [device for device, sent in tried.items() if sent is not False]
        with self._lock:
            self._sent_at_s.update(dict.fromkeys(done, self._clock.monotonic_s()))
        return sum(sent is True for sent in tried.values())

    def remind(self) -> int:
        """Send again to devices that are online and have not answered for some time.

        With a large fleet not each call does so.

        Returns:
            How many were reminded.

        Raises:
            DatabaseError: The database does not answer.
        """
        if not self._pace.is_due():
            return 0
        with self._pace.working(), self._database.reading() as transaction:
            found = lagging.of_all(transaction, now_s=self._clock.now_s())
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._sent_at_s = {
                name: at_s
                for name, at_s in self._sent_at_s.items()
                if now_s - at_s < RESEND_EVERY_S
            }
            due = [
                name
                for name, is_unheard in found.items()
                if name not in self._sent_at_s and not (is_unheard and self._transfers.runs(name))
            ]
        return self.publish(due[:MAX_RESENT])

    def signed(self, device: str) -> SignedDesired:
        """Return the desired state of a device, signed, for a way without a network.

        Args:
            device: The device.

        Returns:
            What the director sends it over MQTT.

        Raises:
            ConflictError: The director sends it nothing to install: none was decided, every release
                was revoked, the device is not enrolled, or it should run several models and its
                agent has one.
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            documents = desired.documents(transaction, (device,))
        ordered = [model for item in documents for model in item.desired.models if model.release]
        if not ordered:
            raise ConflictError(
                f"device {device} has no desired state",
                remedy="it gets one from a rollout while it is online, or when a rollout ends "
                "without it",
            )
        try:
            envelope = self.sign(documents[0])
        except WireFormatError as exc:
            raise ConflictError(exc.message, remedy=ONE_MODEL) from exc
        digests = [model.release.digest for model in ordered if model.release]
        return SignedDesired(
            device=device,
            revision=documents[0].desired.revision,
            release=digests[0],
            releases=digests,
            envelope=envelope.decode(),
        )

    def sign(self, document: Document) -> bytes:
        """Return a desired state as it is sent.

        The same document gives the same bytes, but for when it expires and the newest timestamp.

        Raises:
            WireFormatError: It has several models, and the agent of the device has one.
        """
        return self._signed(document, self._mark())

    def _signed(self, document: Document, mark: Mark | None) -> bytes:
        told = msgspec.structs.replace(document.desired, has_sources=True)
        if mark is not None:
            told = msgspec.structs.replace(
                told, expires_at_s=mark.expires_at_s, timestamp=mark.timestamp
            )
        payload = desired_to_json(told, form=document.form)
        return seal(payload, payload_type=DESIRED_PAYLOAD_TYPE, keys=(self._key,))

    def _mark(self) -> Mark | None:
        """Return until when what is signed now counts, in steps of a part of its life."""
        metadata = self._metadata
        if metadata is None or not metadata.timestamp:
            return None
        step_s = metadata.desired_s / DESIRED_STEPS
        end_s = (self._clock.now_s() // step_s + 1) * step_s + metadata.desired_s
        mark = Mark(end_s, metadata.timestamp)
        with self._lock:
            if mark not in self._marks:
                self._marks.append(mark)
        return mark

    def is_newest(self, documents: Sequence[Document], sha256: str) -> bool:
        """Tell whether one of some desired states is sent as bytes of this digest."""
        self._mark()  # with which another controller may have sent it
        with self._lock:
            marks: list[Mark | None] = [*self._marks, None]
        for document in documents:
            try:
                if any(sha256_hex(self._signed(document, mark)) == sha256 for mark in marks):
                    return True
            except WireFormatError:  # it was never sent
                continue
        return False

    def _send(self, document: Document) -> bool | None:
        """Hand a desired state to the broker: False if it was dropped, None if it cannot be."""
        try:
            envelope = self.sign(document)
        except WireFormatError as exc:
            if self._unsent.is_first(document.device, self._clock.monotonic_s()):
                _log.warning("nothing is sent: %s; %s", exc.message, ONE_MODEL)
            return None
        return self._publisher.publish(topics.down(document.device, "desired"), envelope)
