"""The director: sends each device its signed desired state until the device has accepted it.

The director is named after the role in the trust root whose key signs desired states.

Rules:
- A desired state is saved before it is signed and published; this module saves nothing.
- Publishing happens outside every transaction. A message may be lost, so it is repeated: at a
  device's hello, and while a device that is online lags behind.
- The director sends no revoked release, and nothing to a device that is not enrolled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

import msgspec

from controller.errors import ConflictError
from controller.schemas import SignedDesired
from controller.services.transfers import Transfers
from controller.store import desired
from controller.store.database import Database
from wire import topics
from wire.clock import Clock
from wire.codec import to_json
from wire.messages import DESIRED_PAYLOAD_TYPE, DesiredState
from wire.trust.envelope import SigningKey, seal

RESEND_EVERY_S = 15.0
MAX_RESENT = 500
"""The greatest number of devices that one pass reminds; the next pass reminds others."""

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """The part of a transport that sends."""

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        """Hand a message over; False when it was dropped."""
        ...


class Director:
    """Publishes desired states.

    Args:
        database: Where the desired states are.
        publisher: The way to the devices.
        transfers: Which devices fetch, and were heard of late.
        key: The director's private key.
        clock: Wall time and durations.
    """

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        transfers: Transfers,
        key: SigningKey,
        clock: Clock,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._transfers = transfers
        self._key = key
        self._clock = clock
        self._sent_at_s: dict[str, float] = {}
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
        sent = [item.device for item in documents if self._send(item)]
        with self._lock:
            self._sent_at_s.update(dict.fromkeys(sent, self._clock.monotonic_s()))
        return len(sent)

    def remind(self) -> int:
        """Send again to devices that are online and have not answered for some time.

        Returns:
            How many were reminded.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            lagging = desired.lagging(transaction, now_s=self._clock.now_s())
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._sent_at_s = {
                name: at_s
                for name, at_s in self._sent_at_s.items()
                if now_s - at_s < RESEND_EVERY_S
            }
            due = [
                name
                for name, is_unheard in lagging.items()
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
            ConflictError: The director sends it nothing: none was decided, its release was revoked,
                or the device is not enrolled.
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            documents = desired.documents(transaction, (device,))
        if not documents:
            raise ConflictError(
                f"device {device} has no desired state",
                remedy="it gets one from a rollout while it is online, or when a rollout ends "
                "without it",
            )
        document = documents[0]
        return SignedDesired(
            device=device,
            revision=document.revision,
            release=document.release.digest if document.release else None,
            envelope=self.sign(document).decode(),
        )

    def sign(self, document: DesiredState) -> bytes:
        """Return a desired state as it is sent: the same bytes for the same document."""
        told = msgspec.structs.replace(document, has_sources=True)
        return seal(to_json(told), payload_type=DESIRED_PAYLOAD_TYPE, keys=(self._key,))

    def _send(self, document: DesiredState) -> bool:
        topic = topics.down(document.device, "desired")
        return self._publisher.publish(topic, self.sign(document))
