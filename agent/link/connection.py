"""The connection to the controller: sends messages, and queues received ones, up to a bound.

Rules:
- The transport's thread only puts messages on the queue. If the queue stays full for a second, it
  drops the message; the part that waits for the message asks again.
- No message waits for a connection: on every connect the device sends its state, and the controller
  answers with what has changed.
- A device with a certificate hears casts on a connection of their own (`agent.link.casts`).
- Reports are numbered, and none is sent before the first greeting: a report that arrives late must
  not count as the newest.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from agent.link.casts import CastConnection
from agent.link.enrolment import Connect, Login
from agent.link.identity import Account
from agent.link.outage import Outage
from wire.codec import to_json
from wire.installs import InstallReport, Refusal
from wire.mqtt import LastWill
from wire.presence import Hello, Presence
from wire.topics import all_down, cast_name, up
from wire.transport import Connection, Received, Transport

INBOX_ITEMS: Final = 256
"""At most 32 MiB with chunks of 128 KiB; in practice, as many as a fetcher's window."""

PUT_TIMEOUT_S: Final = 1.0

Serving: TypeAlias = tuple[str | None, str | None]
"""Digest of the package and name of the variant; None for each that there is not."""


class Link:
    """A device's connection to its controller.

    Args:
        device: The device.
        boot_id: Identifies this start of the agent.
        outage: Takes why there is no connection.
        enrol_password: Returns the secret of the account for enrolment, through which a device with
            a certificate hears casts.
    """

    def __init__(
        self,
        device: str,
        boot_id: str,
        outage: Outage,
        enrol_password: Callable[[], str] = lambda: "",
    ) -> None:
        self.outage = outage
        self._device = device
        self._boot_id = boot_id
        self._inbox: queue.Queue[Received | Connection] = queue.Queue(maxsize=INBOX_ITEMS)
        self._transport: Transport | None = None
        self._enrol_password = enrol_password
        self._casts: CastConnection | None = None
        """None for a device that hears casts on its one connection."""

        self._filters = [all_down(device)]
        self._lock = threading.Lock()
        self._up = False
        self._refused = False
        self._heard_broker = False
        self._closed = False
        self._greeted = False
        self.told_revision = 0
        """The newest revision that the controller was told that the device has accepted."""

        self.told: dict[str, Serving] = {}
        """What serves each model, as the controller was told last."""

        self._reports = itertools.count(1)

    def open(self, connect: Connect, account: Account) -> None:
        """Begin to connect, in place of an earlier connection; messages then come to the queue.

        Args:
            connect: Makes the connection.
            account: The device's own account.

        Raises:
            TransportError: A certificate file cannot be read.
        """
        gone = Presence(device=self._device, online=False, boot_id=self._boot_id)
        transport = connect(
            Login(
                client_id=account.client_id,
                username=account.username,
                password=account.password,
                certificate=account.certificate,
                will=LastWill(topic=up(self._device, "presence"), payload=to_json(gone)),
            )
        )
        if self._transport is not None:
            self._transport.close()
        with self._lock:
            if self._closed:
                return
            self._transport = transport
            self._open_casts(connect, account)
            for topic_filter in self._filters:
                self._way_of(topic_filter, transport).subscribe(topic_filter)
            self._up = self._refused = self._heard_broker = False
            transport.start(self._heard, self._changed)

    def _open_casts(self, connect: Connect, account: Account) -> None:
        if self._casts is not None:
            self._casts.close()
        self._casts = None
        if account.certificate is not None:
            self._casts = CastConnection(connect, self._enrol_password, self._heard)

    def _way_of(self, topic: str, transport: Transport) -> Transport | CastConnection:
        """Return the connection on which a topic is heard."""
        return transport if self._casts is None or cast_name(topic) is None else self._casts

    def next(self, timeout_s: float) -> Received | Connection | None:
        """Return the next message or change of the connection, or None if none comes in time."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def greet(self, hello: Hello) -> None:
        """Publish the presence and the state of the device."""
        here = Presence(device=self._device, online=True, boot_id=self._boot_id)
        self.publish(up(self._device, "presence"), to_json(here))
        if self.publish(up(self._device, "hello"), to_json(hello)):
            self._greeted = True
            self.told, self.told_revision = serving(hello), hello.revision

    def tell(self, report: InstallReport) -> None:
        """Publish a report; without a connection, or before the greeting, it is dropped."""
        if not self._greeted:
            return
        with self._lock:
            numbered = msgspec.structs.replace(
                report, boot_id=self._boot_id, sequence=next(self._reports)
            )
            told = self.publish(up(self._device, "report"), to_json(numbered))
            if told and isinstance(report.model, str):
                self.told = self.told | {report.model: (report.active, report.variant)}
                self.told_revision = max(self.told_revision, report.revision)

    def publish(self, topic: str, payload: bytes, expiry_s: int | None = None) -> bool:
        """Publish a message; return False if there is no connection."""
        transport = self._transport
        return transport is not None and transport.publish(topic, payload, expiry_s=expiry_s)

    def subscribe(self, topic: str) -> None:
        """Receive what comes on one more topic, also on later connections."""
        with self._lock:
            self._filters.append(topic)
            if self._transport is not None:
                self._way_of(topic, self._transport).subscribe(topic)

    def unsubscribe(self, topic: str) -> None:
        """No longer receive what comes on a topic; what is on its way still comes."""
        with self._lock:
            if topic in self._filters:
                self._filters.remove(topic)
                if self._transport is not None:
                    self._way_of(topic, self._transport).unsubscribe(topic)

    def is_waiting(self, topic: str) -> bool:
        """Tell whether a message to a topic was sent, and the broker has not acknowledged it."""
        transport = self._transport
        return transport is not None and transport.is_waiting(topic)

    def is_denied(self, topic: str) -> bool:
        """Tell whether the broker refused a message to a topic: the account may be an older one."""
        transport = self._transport
        return transport is not None and transport.is_denied(topic)

    def greeted_nobody(self) -> bool:
        """Tell whether no controller was there when the device greeted."""
        transport = self._transport
        return transport is not None and transport.found_nobody(up(self._device, "hello"))

    def refuse(self, refusal: Refusal) -> None:
        """Publish that the device does not accept a desired state."""
        self.publish(up(self._device, "refusal"), to_json(refusal))

    def is_refused(self) -> bool:
        """Tell whether the broker refused the device's account or certificate when it tried last.

        A device that was shut out may still connect with its certificate, but do nothing.
        """
        return self._refused or self.is_denied(up(self._device, "presence"))

    def is_unheard(self) -> bool:
        """Tell whether nothing has come of the last `open` yet, neither good nor bad."""
        return not self._heard_broker

    def is_connected(self) -> bool:
        """Tell whether the broker is connected now."""
        return self._up

    def close(self) -> None:
        """Publish that the device goes offline, and close the connection."""
        gone = Presence(device=self._device, online=False, boot_id=self._boot_id)
        self.publish(up(self._device, "presence"), to_json(gone))
        with self._lock:
            self._closed = True
            if self._casts is not None:
                self._casts.close()
            if self._transport is not None:
                self._transport.close()

    def _heard(self, received: Received) -> None:
        self._put(received)

    def _changed(self, connection: Connection) -> None:
        self._heard_broker = True
        self._up, self._refused = connection.up, connection.refused
        if connection.up:
            self.outage.over()
        elif connection.refused:
            reason = f"the broker refuses the account of this device: {connection.reason}"
            self.outage.met("connection", reason)
        elif not self._closed:
            reason = connection.reason or "the connection was lost"
            self.outage.met("connection", reason, kind="connection")
        self._put(connection)

    def _put(self, item: Received | Connection) -> None:
        try:
            self._inbox.put(item, timeout=0 if self._closed else PUT_TIMEOUT_S)
        except queue.Full:
            return


def serving(hello: Hello) -> dict[str, Serving]:
    """Return what serves each model, by its name, as a greeting tells it."""
    models = () if isinstance(hello.models, msgspec.UnsetType) else hello.models
    return {model.name: (model.release, model.variant) for model in models}
