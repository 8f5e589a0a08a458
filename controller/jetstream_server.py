"""The server of the log of telemetry: how it is reached, and what its stream must be.

Rules:
- With `tls://` nothing goes out before the connection is encrypted: the client alone would believe
  a server that says it has no TLS.
- A stream that may drop what is not stored is refused.
- A consumer that keeps something back, as after a kill of the server, is made anew.

Source:
    NATS documentation, "JetStream": streams, consumers.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING, Final

from controller.errors import SettingsError, TelemetryLogError
from controller.named_files import read_secret
from controller.telemetry_settings import LogConfig
from wire.messages import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

CONSUMER: Final = "store"
ANSWER_S: Final = 5.0
FETCH_S: Final = 5.0
SAME_S: Final = 120.0
HEADER_BYTES: Final = 4096
PING_S: Final = 10
MAX_FAULT_CHARS: Final = 200


class LogServer:
    """Connects with the server, and makes the stream.

    Args:
        config: Where it is, and what it may keep.
        store_s: After so long without a word, the log hands a batch over again.

    Raises:
        SettingsError: A file of the settings is unusable.
    """

    def __init__(self, config: LogConfig, store_s: float) -> None:
        self._config, self._store_s = config, store_s
        self._is_encrypted = any(server.startswith("tls:") for server in config.servers)
        self._tls, self._password = _context(config), ""
        if config.password_file is not None:
            self._password = read_secret(config.password_file, "the password of the telemetry log")
        self._oldest, self._oldest_since_s = 0, 0.0
        """Where the oldest batch in the log is, and since when."""

    async def connect(self, client: Client) -> None:
        """Connect.

        Args:
            client: A new one.

        Raises:
            TelemetryLogError: It cannot be reached, or must not be used.
        """
        faults = ["it does not answer"]

        async def note(exc: Exception) -> None:
            faults.append(fault_text(exc))

        def password() -> str:
            self._check_encrypted(client)
            return self._password

        try:
            async with asyncio.timeout(ANSWER_S):
                await client.connect(
                    list(self._config.servers),
                    name="edgefleet-controller",
                    allow_reconnect=False,
                    reconnect_time_wait=1,
                    error_cb=note,
                    ping_interval=PING_S,
                    flush_timeout=ANSWER_S,
                    tls=self._tls,
                    user=self._config.user,
                    password=password,
                )
        except TimeoutError as exc:
            raise TelemetryLogError(faults[-1]) from exc
        self._check_encrypted(client)
        if client.max_payload < MAX_MESSAGE_BYTES + HEADER_BYTES:
            raise TelemetryLogError(
                f"its max_payload is below {MAX_MESSAGE_BYTES + HEADER_BYTES} bytes"
            )

    def _check_encrypted(self, client: Client) -> None:
        """Prove that the connection is encrypted where it should be.

        Raises:
            TelemetryLogError: It is not.
        """
        # The client has no other way to ask; without this attribute there is no connection.
        if self._is_encrypted and client._server_info.get("tls_required") is not True:  # noqa: SLF001
            raise TelemetryLogError("it has no TLS, and the settings ask for it")

    async def prepare(self, jetstream: JetStreamContext) -> None:
        """Make the stream and its consumer, or look at what is there.

        Args:
            jetstream: A connection.

        Raises:
            TelemetryLogError: The stream may drop what is not stored, or not take all batches.
        """
        from nats.js import api
        from nats.js.errors import NotFoundError

        name = self._config.stream
        try:
            found = await jetstream.stream_info(name)
        except NotFoundError:
            wanted = api.StreamConfig(
                name=name,
                subjects=[f"{name}.>"],
                retention=api.RetentionPolicy.WORK_QUEUE,
                discard=api.DiscardPolicy.NEW,
                max_bytes=self._config.keep_bytes,
                num_replicas=self._config.replicas,
                storage=api.StorageType.FILE,
                duplicate_window=SAME_S,
            )
            found = await jetstream.add_stream(wanted)
        has = found.config
        is_kept = has.discard == api.DiscardPolicy.NEW and has.storage == api.StorageType.FILE
        # One of a subject would push out the one before it.
        is_bounded = has.max_age or (has.max_msgs_per_subject or -1) > 0
        if has.retention != api.RetentionPolicy.WORK_QUEUE or not is_kept or is_bounded:
            raise TelemetryLogError(
                f"its stream {name} may drop what is not stored",
                remedy="give it retention workqueue, discard new, storage file, and neither a"
                " greatest age nor a greatest number of each subject, or another name in"
                " telemetry.log.stream",
            )
        if 0 < (has.max_msg_size or -1) < MAX_MESSAGE_BYTES + HEADER_BYTES:
            raise TelemetryLogError(
                f"the max_msg_size of its stream {name} is below"
                f" {MAX_MESSAGE_BYTES + HEADER_BYTES} bytes"
            )
        await self.prepare_consumer(jetstream)

    async def prepare_consumer(self, jetstream: JetStreamContext) -> None:
        """Make the consumer if there is none, or anew if it keeps something back.

        What is in the log, and with readers, is then handed over again.

        Args:
            jetstream: A connection.
        """
        from nats.js import api

        name = self._config.stream
        consumer = api.ConsumerConfig(
            durable_name=CONSUMER,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=self._store_s,
            max_deliver=-1,
        )
        floor = (await jetstream.add_consumer(name, consumer)).ack_floor
        done, state = floor.stream_seq if floor else 0, (await jetstream.stream_info(name)).state
        if self._oldest != state.first_seq or not state.messages:
            self._oldest, self._oldest_since_s = state.first_seq, time.monotonic()
        is_forgotten = state.messages and state.first_seq <= done
        # Twice the time after which it comes again, and it did not leave.
        is_late = time.monotonic() - self._oldest_since_s > 2 * self._store_s + FETCH_S
        if state.last_seq < done or is_forgotten or (state.messages and is_late):
            # A server that was killed has what had left the log, or lost what was at its end:
            # nobody would ever get it. All of it is handed over again.
            self._oldest = 0
            await jetstream.delete_consumer(name, CONSUMER)
            await jetstream.add_consumer(name, consumer)


def _context(config: LogConfig) -> ssl.SSLContext:
    """Return how certificates of servers are checked.

    Raises:
        SettingsError: The file of the authority is unusable.
    """
    try:
        return ssl.create_default_context(cafile=config.ca_file)
    except OSError as exc:
        raise SettingsError(
            f"cannot use the authority of the telemetry log in {config.ca_file}:"
            f" {(exc.strerror or str(exc)).lower()}",
            remedy="correct telemetry.log.ca_file in controller.toml",
        ) from exc


def fault_text(exc: Exception) -> str:
    """Return what is wrong, in short."""
    return ((exc.strerror if isinstance(exc, OSError) else "") or str(exc))[:MAX_FAULT_CHARS]
