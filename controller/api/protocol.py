"""One connection to an HTTP server: uvicorn's protocol, with bounds on what a client may hold.

uvicorn bounds neither the time of a header nor that of a TLS handshake, and counts a connection
only after the handshake. So the handshake is made here, and a connection has its place from the
first packet on.

Rules:
- A client that sends no complete header in time loses its connection, whatever it sent of it; so
  does one that stops in the middle of a body, and one that does not read its answer.
- A connection that loses its place ends at once. A new one that gets none is answered with 503
  first; not over TLS, because the handshake would take time and so a place.
- A request with the token, or with a valid link, keeps the place of its connection until its answer
  has been sent.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from dataclasses import dataclass
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr

from controller.api import faults as api_faults
from controller.api.places import END, KEEP, Places, client_of
from controller.errors import BusyError

FAREWELL_S: Final = 1.0
"""How long the end of a connection may take; a client need not take part in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a server is called."""

    name: str
    table: str
    """Of its settings in controller.toml."""

    risk: str
    """What can be read on the network where it has no TLS."""

    def refusal(self) -> bytes:
        """Return the answer to a connection that gets no place."""
        return api_faults.written(
            api_faults.answer(
                BusyError(
                    f"{self.name} answers as many requests of this client as it may at one time",
                    remedy="try again in some seconds, or raise "
                    f"{self.table}.connections_per_client and {self.table}.connections "
                    "in controller.toml",
                )
            )
        )


API: Final = Served(name="the API", table="api", risk="its token")
DOWNLOADS: Final = Served(name="the download listener", table="downloads", risk="what devices get")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds on what the clients of a server may hold."""

    total: int = 512
    """Open connections."""

    per_client: int = 64
    """Open connections from one address."""

    header_s: float = 10.0
    """Time for the TLS handshake and the first header, and from an answer to the end of the next
    header."""

    silence_s: float = 30.0
    """Time without a byte of a body that has begun."""

    unread_s: float = 30.0
    """Time without a byte that the client takes, while more of its answers waits than the buffers
    hold."""


class BoundedProtocol(H11Protocol):
    """One connection.

    Args:
        limits: The bounds.
        places: The places of all connections.
        tls: Certificate and key; None for no TLS.
        refusal: The answer where there is no place.
        uvicorn: What uvicorn gives to its protocols.
    """

    def __init__(
        self,
        *,
        limits: ConnectionLimits,
        places: Places[BoundedProtocol],
        tls: ssl.SSLContext | None,
        refusal: bytes,
        **uvicorn: Any,  # noqa: ANN401 - uvicorn's own
    ) -> None:
        super().__init__(**uvicorn)
        self.access_log = False  # a path may hold a secret, such as a link
        self._limits = limits
        self._places = places
        self.app_state = {
            **self.app_state,
            KEEP: functools.partial(places.work, self),
            END: self.end,
        }
        self._tls = tls
        self._refusal = refusal
        self._tcp: asyncio.Transport | None = None
        self._open = False
        """Whether uvicorn has the connection: without TLS at once, else after the handshake."""

        self._early = bytearray()
        """What came together with the last message of the handshake."""

        self._handshake: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None
        """Looks whether the client reads, while the buffers are full."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Take a place, then begin with TLS or with HTTP."""
        self._tcp = transport
        self.connections.add(self)
        address = get_remote_addr(transport)
        loser = self._places.take(self, client_of(address[0] if address else ""))
        if loser is self:
            self._refuse(transport)
            return
        if loser is not None:
            loser.end()
        self._set_deadline(self._limits.header_s)
        if self._tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._agree(transport, self._tls))

    def data_received(self, data: bytes) -> None:
        """Read what the client sends."""
        if not self._open:
            self._early += data
            return
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Wait for the next request, or answer the one that has come already."""
        self._places.wait(self)
        self._set_deadline(self._limits.header_s)
        super().on_response_complete()
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._leave()
        if self._open:
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read, for a bounded time."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Go on to write."""
        super().resume_writing()
        self._stop_expecting()

    def shutdown(self) -> None:
        """End the connection when its request has been answered, because the server stops."""
        if self._is_answering:
            super().shutdown()
        else:
            self.end()

    def end(self) -> None:
        """End the connection at once; what has not been sent is lost."""
        if self._tcp is not None:
            self._tcp.abort()

    def _refuse(self, tcp: asyncio.Transport) -> None:
        """Tell the client to come again, and end the connection."""
        if self._tls is not None:
            self.end()
            return
        self._set_deadline(FAREWELL_S)
        tcp.write(self._refusal)  # it fits into the empty buffer of the socket
        tcp.close()

    async def _agree(self, tcp: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Make the TLS handshake, then begin with HTTP."""
        try:
            secured = await self.loop.start_tls(
                tcp,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._limits.header_s,
                ssl_shutdown_timeout=FAREWELL_S,
            )
        except OSError:  # no TLS, no common version, too late, or gone
            secured = None
        if secured is None:  # asyncio does not say so to a protocol that is not connected yet
            self.end()
            self._leave()
            return
        self._begin(secured)
        early, self._early = bytes(self._early), bytearray()
        if early:
            self.data_received(early)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._open = True
        super().connection_made(transport)

    @property
    def _is_answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn sets it later
        return cycle is not None and not cycle.response_complete

    def _note(self) -> None:
        """Bound only the body in time while a request is being answered."""
        if self._is_answering:  # else the time for the header runs on
            self._set_deadline(self._limits.silence_s if self.cycle.more_body else None)

    def _set_deadline(self, within_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if within_s is None else self.loop.call_later(within_s, self._late)

    def _late(self) -> None:
        if self._open and self.flow.read_paused:  # the controller is slow, not the client
            self._set_deadline(self._limits.silence_s)
        else:
            self.end()

    @property
    def _unsent_bytes(self) -> int:
        """What waits for the client: above TLS and below it."""
        waiting_bytes: int = self.transport.get_write_buffer_size()
        if self._tcp is not None and self._tcp is not self.transport:
            waiting_bytes += self._tcp.get_write_buffer_size()
        return waiting_bytes

    def _expect_reading(self) -> None:
        self._stop_expecting()
        self._reader = self.loop.call_later(
            self._limits.unread_s, self._look_whether_read, self._unsent_bytes
        )

    def _stop_expecting(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        self._reader = None

    def _look_whether_read(self, before_bytes: int) -> None:
        if self._unsent_bytes < before_bytes:
            self._expect_reading()
        else:
            self.end()

    def _leave(self) -> None:
        self._set_deadline(None)
        self._stop_expecting()
        self._places.leave(self)
        self.connections.discard(self)
