"""Triton's extension for system shared memory: what clients register, and the paths for that.

| request | answer |
|---|---|
| `POST /v2/systemsharedmemory/region/NAME/register` | the region may be named in requests |
| `POST /v2/systemsharedmemory[/region/NAME]/unregister` | it is forgotten, or all are |
| `GET /v2/systemsharedmemory[/region/NAME]/status` | the region, or all |

The supervisor keeps what was registered; a worker opens the memory for each request that names it.
So a region outlives a switch and a crash of a worker, and no tensor comes through this process.

Rules:
- Each user of the machine has regions of its own, and neither sees nor names those of others.
- A client whose user is not known has no regions, and neither has a page in a browser: it would act
  as the user whose browser it is.
- Regions are bounded in number and size. Where a user has too many, those go first whose memory
  is gone.

Source:
    Triton Inference Server, protocol/extension_shared_memory.md.
"""

from __future__ import annotations

import re
import socket
import threading
from typing import Annotated, Final
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import msgspec

from agent.serve.errors import RegionError
from agent.serve.frames import Reply
from agent.serve.http.client_user import user_of
from agent.serve.regions import Region, is_current, region_of
from wire.codec import from_json, to_json
from wire.errors import WireFormatError

REGIONS_EACH: Final = 32
"""Regions of a user: for a pool of clients with two each."""

REGIONS: Final = 256
"""Regions of all users; each takes under a kilobyte."""

MAX_REQUEST_BYTES: Final = 4096
_PATH: Final = re.compile(
    r"/v2/systemsharedmemory(?:/region/([^/]{1,600}))?/(status|register|unregister)"
)
_NAMED: Final = re.compile(rb'"shared_memory_region"')
_NO_PAGE: Final = "pages in a browser may use no shared memory"
_NO_USER: Final = "the agent cannot tell which user runs the client"
_WAY: Final = "under systemd, PrivateUsers=no lets it see other users than its own"
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class RegisterRequest(msgspec.Struct, frozen=True):
    """What a client registers."""

    key: str
    byte_size: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    offset: _Count = 0


class Regions:
    """What the users of this machine have registered. For any thread.

    Args:
        most_bytes: Greatest size of a region.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._regions: dict[int, dict[str, Region]] = {}

    def register(self, user: int, name: str, key: str, offset: int, byte_size: int) -> None:
        """Remember a region. One that is the same as before may be registered again.

        Args:
            user: The client's user.
            name: The client's name for it.
            key: Name of the shared memory object.
            offset: Where the region begins in it, in bytes.
            byte_size: How long it is.

        Raises:
            RegionError: Another region has this name, it is too large, there are too many, or the
                object is missing, another user's or too short.
        """
        if byte_size > self._most_bytes:
            raise RegionError(f"a region may have {self._most_bytes} bytes, not {byte_size}")
        region = region_of(name=name, key=key, offset=offset, byte_size=byte_size, user=user)
        with self._lock:
            mine = self._regions.setdefault(user, {})
            before = mine.get(name)
            if before is not None:
                if (before.key, before.offset, before.byte_size) != (key, offset, byte_size):
                    raise RegionError(
                        f"shared memory region {name!r} is registered with another place",
                        remedy="unregister it first",
                    )
            else:
                self._make_room(mine)
            mine[name] = region

    def unregister(self, user: int, name: str | None) -> None:
        """Forget a region, if there is one.

        Args:
            user: The client's user.
            name: The client's name for it; None for all of the user.
        """
        with self._lock:
            mine = self._regions.get(user, {})
            if name is not None:
                mine.pop(name, None)
            if name is None or not mine:
                self._regions.pop(user, None)

    def of(self, user: int) -> tuple[Region, ...]:
        """Return the regions of a user.

        Args:
            user: The user.
        """
        with self._lock:
            return tuple(self._regions.get(user, {}).values())

    def _make_room(self, mine: dict[str, Region]) -> None:
        """Forget regions of a user whose memory is gone, if another one has no room.

        Raises:
            RegionError: There are too many all the same.
        """
        if len(mine) >= REGIONS_EACH:
            for name in [name for name, region in mine.items() if not is_current(region)]:
                del mine[name]
        total = sum(map(len, self._regions.values()))
        if len(mine) >= REGIONS_EACH or total >= REGIONS:
            raise RegionError(
                f"there are {len(mine)} shared memory regions of this user and {total} in all, "
                f"and there may be {REGIONS_EACH} and {REGIONS}",
                remedy="unregister some",
            )


class SharedMemoryApi:
    """Answers the paths of the extension, and finds the regions of a request.

    Args:
        regions: What was registered.
    """

    extensions = ("system_shared_memory",)

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._users: WeakKeyDictionary[socket.socket, int] = WeakKeyDictionary()
        """The users of connections that have asked: looking for one takes a while."""

        self._lock = threading.Lock()

    def answer(
        self, method: str, path: str, body: memoryview, connection: socket.socket | None
    ) -> Reply:
        """Answer a request.

        Args:
            method: HTTP method.
            path: Its path, below `extensions.SHARED_MEMORY`.
            body: As received.
            connection: Where it comes from; None for a page in a browser.

        Returns:
            The answer.
        """
        match = _PATH.fullmatch(path)
        if match is None or (match[1] is None and match[2] == "register"):
            return Reply.refusal(404, f"there is no {path[:200]}")
        name, action = None if match[1] is None else unquote(match[1]), match[2]
        wanted = "GET" if action == "status" else "POST"
        if method != wanted:
            return Reply.refusal(405, f"this path requires {wanted}", {"Allow": wanted})
        try:
            user = self._user(connection)
            if action == "status":
                return self._status(user, name)
            if action == "unregister":
                self._regions.unregister(user, name)
            elif name is not None:
                self._register(user, name, body)
        except RegionError as exc:
            return Reply.refusal(exc.status, str(exc))
        except WireFormatError as exc:
            return Reply.refusal(400, exc.message)
        return Reply(status=200, headers={}, body=memoryview(b""))

    def of_request(
        self, head: memoryview, connection: socket.socket | None, *, deferrable: bool
    ) -> tuple[Region, ...]:
        """Return the regions of the client, if its request names one.

        Args:
            head: The JSON part of the body.
            connection: Where it comes from; None for a page in a browser.
            deferrable: Whether the request may wait.

        Raises:
            RegionError: The client's user is not known, or the memory could change meanwhile.
        """
        if _NAMED.search(head) is None:
            return ()
        if deferrable:
            raise RegionError("a deferrable request cannot use shared memory: send its tensors")
        return self._regions.of(self._user(connection))

    def _register(self, user: int, name: str, body: memoryview) -> None:
        if len(body) > MAX_REQUEST_BYTES:
            raise WireFormatError("the request is too long")
        wanted = from_json(bytes(body), RegisterRequest)
        self._regions.register(user, name, wanted.key, wanted.offset, wanted.byte_size)

    def _status(self, user: int, name: str | None) -> Reply:
        found = [region for region in self._regions.of(user) if name in {None, region.name}]
        if name is not None and not found:
            raise RegionError(f"there is no shared memory region {name[:80]!r}", status=404)
        document = [
            {
                "name": region.name,
                "key": region.key,
                "offset": region.offset,
                "byte_size": region.byte_size,
            }
            for region in found
        ]
        headers = {"Content-Type": "application/json"}
        return Reply(status=200, headers=headers, body=memoryview(to_json(document)))

    def _user(self, connection: socket.socket | None) -> int:
        """Return the user at the other end of a connection, which stays the same.

        Raises:
            RegionError: It is not known.
        """
        if connection is None:
            raise RegionError(_NO_PAGE, status=403)
        with self._lock:
            user = self._users.get(connection)
        if user is None:
            user = user_of(connection)
            if user is None:
                raise RegionError(_NO_USER, remedy=_WAY, status=403)
            with self._lock:
                self._users[connection] = user
        return user
