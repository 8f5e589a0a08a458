"""Keeps durable requests and their answers on the disk, each in a file of its own.

A request is `ID.request-N`: N counts how often it was begun. Its answer is `ID.answer`. A file
begins with the SHA-256 of the rest, which is MessagePack.

| the agent ends | after the restart |
|---|---|
| before `ID.request-0` is there | the client got no 202; nothing is left |
| before its answer is there | the request waits again; begun too often, it is given up |
| before the answered request is removed | the answer counts, the request is removed |
| in a removal | what is left is answered, or waits, and its client can remove it again |

Rules:
- Files are for the agent's user alone, and written completely or not at all.
- The digest is compared before anything is decoded. A damaged file is one event, and is removed.
- Removing begins with the request: what was forgotten must not run again.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from agent.errors import StorageError, storage_faults
from agent.ports import RecorderPort
from wire.errors import IntegrityError
from wire.files import read_regular, sync_directory, write_atomic

DIGEST_BYTES: Final = 32
HEAD_BYTES: Final = 64 * 1024
"""More than a file has beside the body."""

_REQUEST: Final = re.compile(r"([0-9a-f]{32})\.request-([0-9])")
_ANSWER: Final = re.compile(r"([0-9a-f]{32})\.answer")
_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{32}\.(?:request-0|answer)\.new")


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came."""

    model: str
    version: str | None
    header_length: int | None
    body: memoryview
    came_s: float
    """When it came, and until when it waits: wall time, seconds since the epoch."""

    expires_s: float


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: memoryview
    at_s: float
    """Wall time when it was there."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a restart finds of a request."""

    id: str
    begun: int
    """How often it was begun; 0 if it is answered."""

    size_bytes: int
    """Length of the body of the answer, or else of the request."""

    came_s: float
    """When the answer or the request came."""

    expires_s: float = 0.0
    answered: bool = False


S = TypeVar("S", StoredRequest, StoredAnswer)

_WHAT: Final[dict[type, str]] = {StoredRequest: "request", StoredAnswer: "answer"}


class DeferredStore:
    """A directory of requests and answers. Not for several threads.

    Args:
        directory: Where; made when the first request comes.
        limit_bytes: A body is no longer than this.
        recorder: Records damage.
    """

    def __init__(self, directory: Path, limit_bytes: int, recorder: RecorderPort) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes + HEAD_BYTES
        self._recorder = recorder

    def load(self) -> list[Kept]:
        """Return what is there, the oldest first, and remove what a crash left half done.

        Raises:
            StorageError: The directory cannot be read.
        """
        found: dict[str, Kept] = {}
        with storage_faults("cannot read the deferred requests"):
            names = sorted(p.name for p in self._directory.iterdir()) if self._exists() else []
            for name in names:  # `.answer` comes before `.request`
                if _TEMPORARY.fullmatch(name):
                    self._discard(name)
                elif match := _ANSWER.fullmatch(name):
                    self._add(found, self._kept_answer(match[1]))
                elif match := _REQUEST.fullmatch(name):
                    if match[1] in found:
                        self._discard(name)
                    else:
                        self._add(found, self._kept_request(match[1], int(match[2])))
        return sorted(found.values(), key=lambda kept: kept.came_s)

    def save_request(self, ticket: str, request: StoredRequest) -> None:
        """Keep a new request.

        Raises:
            StorageError: It cannot be written; nothing of it is left.
        """
        with storage_faults("cannot keep the request"):
            if not self._exists():
                self._directory.mkdir(mode=0o700)
                sync_directory(self._directory.parent)
            self._write(self._request(ticket, 0), request)

    def count(self, ticket: str, begun: int, now: int) -> None:
        """Note how often a request was begun.

        Args:
            ticket: Its identifier.
            begun: How often until now.
            now: How often from now on.

        Raises:
            StorageError: It cannot be noted.
        """
        with storage_faults("cannot note that a request begins"):
            self._request(ticket, begun).replace(self._request(ticket, now))
            sync_directory(self._directory)

    def read_request(self, ticket: str, begun: int) -> StoredRequest:
        """Return a request.

        Raises:
            StorageError: It cannot be read, or is damaged; a damaged one is removed.
        """
        return self._read(self._request(ticket, begun), StoredRequest)

    def read_answer(self, ticket: str) -> StoredAnswer:
        """Return an answer.

        Raises:
            StorageError: It cannot be read, or is damaged; a damaged one is removed.
        """
        return self._read(self._answer(ticket), StoredAnswer)

    def save_answer(self, ticket: str, answer: StoredAnswer, begun: int) -> None:
        """Keep an answer, and remove its request.

        Raises:
            StorageError: The answer cannot be written; the request is still there.
        """
        with storage_faults("cannot keep the answer"):
            self._write(self._answer(ticket), answer)
            self._request(ticket, begun).unlink(missing_ok=True)

    def remove(self, ticket: str, begun: int) -> None:
        """Remove a request and its answer; what is not there is no fault.

        Raises:
            StorageError: One of them cannot be removed.
        """
        with storage_faults("cannot remove a deferred request"):
            self._request(ticket, begun).unlink(missing_ok=True)
            self._answer(ticket).unlink(missing_ok=True)
            if self._exists():
                sync_directory(self._directory)

    def _exists(self) -> bool:
        return self._directory.is_dir()

    def _discard(self, name: str) -> None:
        """Remove what a crash left. A disk that can only be read must not hide all the others."""
        try:
            with storage_faults("cannot remove a part of a deferred request"):
                (self._directory / name).unlink(missing_ok=True)
        except StorageError as exc:
            self._recorder.event("storage", exc.message, {"file": name, "code": exc.code})

    def _request(self, ticket: str, begun: int) -> Path:
        return self._directory / f"{ticket}.request-{begun}"

    def _answer(self, ticket: str) -> Path:
        return self._directory / f"{ticket}.answer"

    @staticmethod
    def _add(found: dict[str, Kept], kept: Kept | None) -> None:
        if kept is not None:
            found[kept.id] = kept

    def _kept_answer(self, ticket: str) -> Kept | None:
        try:
            answer = self.read_answer(ticket)
        except StorageError:
            return None
        return Kept(
            id=ticket, begun=0, size_bytes=len(answer.body), came_s=answer.at_s, answered=True
        )

    def _kept_request(self, ticket: str, begun: int) -> Kept | None:
        try:
            request = self.read_request(ticket, begun)
        except StorageError:
            return None
        return Kept(
            id=ticket,
            begun=begun,
            size_bytes=len(request.body),
            came_s=request.came_s,
            expires_s=request.expires_s,
        )

    def _write(self, path: Path, value: StoredRequest | StoredAnswer) -> None:
        """Write a file, or leave nothing of it.

        Raises:
            OSError: It cannot be written.
        """
        content = msgspec.msgpack.encode(value)
        try:
            write_atomic(path, hashlib.sha256(content).digest() + content)
        except OSError:
            # It may be in its place, and only not be durable: nobody knows its ticket.
            path.unlink(missing_ok=True)
            raise

    def _read(self, path: Path, kind: type[S]) -> S:
        what = _WHAT[kind]
        try:
            with storage_faults(f"cannot read a deferred {what}"):
                data = read_regular(path, self._limit_bytes + 1)
            return _decoded(data, kind, self._limit_bytes)
        except StorageError as exc:
            self._recorder.event("storage", exc.message, {"file": path.name, "code": exc.code})
            raise
        except IntegrityError as exc:
            reason = f"a deferred {what} is lost: {exc.message}; its file was removed"
            self._recorder.event("storage", reason, {"file": path.name, "code": exc.code})
            with storage_faults("cannot remove a damaged file"):
                path.unlink(missing_ok=True)
            raise StorageError(f"the deferred {what} is lost: {exc.message}") from exc


def _decoded(data: bytes, kind: type[S], limit_bytes: int) -> S:
    """Check and read the content of a file.

    Raises:
        IntegrityError: It is damaged.
    """
    content = memoryview(data)[DIGEST_BYTES:]
    if len(data) > limit_bytes:
        raise IntegrityError("it is longer than [deferred] allows")
    if hashlib.sha256(content).digest() != data[:DIGEST_BYTES]:
        raise IntegrityError("it does not match its digest")
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except msgspec.MsgspecError as exc:
        raise IntegrityError(f"it is of another version: {exc}") from exc
