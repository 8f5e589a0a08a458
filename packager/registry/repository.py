"""One repository of a registry: its manifests and blobs.

Rules:
- What came is of the digest and the size that were asked for, or it is refused; whoever reads a
  blob checks its digest at the end, while it is written.
- A download that breaks off goes on where it stopped, a few times.

Source:
    OCI distribution spec 1.1, "Pulling blobs", "Pushing a blob monolithically" and "Pushing
    Manifests".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import urllib3

from packager.errors import (
    RegistryAnswerError,
    RegistryMissingError,
    RegistryUnreachableError,
)
from packager.package.content import STEP_BYTES
from packager.registry.access import Access, Body
from packager.registry.artifact import (
    ALGORITHM,
    MANIFEST_TYPE,
    MAX_MANIFEST_BYTES,
    Blob,
)
from wire.codec import sha256_hex

MAX_RESUMPTIONS: Final = 8
PULL_AGAIN: Final = "pull again; if it stays so, the registry is damaged or lies"


class Repository:
    """A repository.

    Args:
        access: To its registry.
        name: Of the repository.
    """

    def __init__(self, access: Access, name: str) -> None:
        self._access = access
        self._name = name

    def manifest(self, tag_or_digest: str) -> bytes:
        """Fetch a manifest.

        Args:
            tag_or_digest: Which one; if it is a digest, what comes has that digest.

        Returns:
            Its bytes, not read yet.

        Raises:
            RegistryAnswerError: It is too large, or another one.
            RegistryError: It is not there, or the registry refuses.
        """
        url = f"{self._name}/manifests/{tag_or_digest}"
        with self._access.request("GET", url, headers={"Accept": MANIFEST_TYPE}) as response:
            if response.status != HTTPStatus.OK:
                raise self._access.fault(response, f"package {self._name}:{tag_or_digest}")
            content = _read(response, MAX_MANIFEST_BYTES + 1)
            if len(content) > MAX_MANIFEST_BYTES:
                raise RegistryAnswerError(
                    f"{self._access.host} sends a manifest of over {MAX_MANIFEST_BYTES} bytes",
                    remedy="name what `fleet package push` wrote",
                )
        is_digest = tag_or_digest.startswith(ALGORITHM)
        if is_digest and ALGORITHM + sha256_hex(content) != tag_or_digest:
            raise RegistryAnswerError(
                f"{self._access.host} sends another manifest than the digest asks for",
                remedy=PULL_AGAIN,
            )
        return content

    def find_manifest(self, tag: str) -> bytes | None:
        """Fetch a manifest that may not be there."""
        try:
            return self.manifest(tag)
        except RegistryMissingError:
            return None

    def put_manifest(self, tag: str, content: bytes) -> None:
        """Store a manifest under a tag, which may have named another one.

        Args:
            tag: The tag.
            content: The manifest; all blobs that it names are there.

        Raises:
            RegistryError: The registry does not take it.
        """
        headers = {"Content-Type": MANIFEST_TYPE, "Content-Length": str(len(content))}
        url = f"{self._name}/manifests/{tag}"
        with self._access.request("PUT", url, headers=headers, body=lambda: (content,)) as response:
            if response.status != HTTPStatus.CREATED:
                raise self._access.fault(response, f"push of the manifest to {self._name}")

    def has_blob(self, blob: Blob) -> bool:
        """Tell whether the repository has some content.

        Args:
            blob: Its digest and size.

        Returns:
            Whether it is there.

        Raises:
            RegistryError: The registry refuses, or does not answer.
        """
        with self._access.request("HEAD", self._url(blob)) as response:
            if response.status == HTTPStatus.NOT_FOUND:
                return False
            if response.status != HTTPStatus.OK:
                raise self._access.fault(response, f"repository {self._name}")
            return True

    def put_blob(self, blob: Blob, body: Body) -> None:
        """Upload content.

        Args:
            blob: Its digest, which the registry checks, and its size.
            body: The content.

        Raises:
            RegistryError: The registry does not take it.
        """
        url, what = f"{self._name}/blobs/uploads/", f"push to {self._name}"
        with self._access.request("POST", url, headers={"Content-Length": "0"}) as response:
            if response.status != HTTPStatus.ACCEPTED:
                raise self._access.fault(response, what)
            place = self._access.joined(url, response.headers.get("Location", ""))
        query = urlencode({"digest": ALGORITHM + blob.sha256})
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(blob.size_bytes),
        }
        target = f"{place}{'&' if '?' in place else '?'}{query}"
        with self._access.request("PUT", target, headers=headers, body=body) as response:
            if response.status != HTTPStatus.CREATED:
                raise self._access.fault(response, what)

    def blob(self, blob: Blob) -> Iterator[bytes]:
        """Download content.

        Args:
            blob: Its digest, which the caller checks, and its size.

        Yields:
            Exactly so many bytes, in parts.

        Raises:
            RegistryAnswerError: It is of another size.
            RegistryUnreachableError: It broke off too often.
            RegistryError: It is not there, or the registry refuses.
        """
        done, resumptions = 0, 0
        while done < blob.size_bytes:
            try:
                with self._opened(blob, done) as response:
                    while part := response.read(min(STEP_BYTES, blob.size_bytes - done)):
                        done += len(part)
                        yield part
                    if done == blob.size_bytes and response.read(1):
                        raise self._other_size()
            except RegistryUnreachableError:
                resumptions += 1
                if resumptions > MAX_RESUMPTIONS or done == 0:
                    raise
                continue
            if done < blob.size_bytes:
                raise self._other_size()

    @contextmanager
    def _opened(self, blob: Blob, offset: int) -> Iterator[urllib3.BaseHTTPResponse]:
        """Ask for content from an offset on.

        Raises:
            RegistryAnswerError: It is of another size, or cannot be continued.
            RegistryError: It is not there, or the registry refuses.
        """
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._access.request("GET", self._url(blob), headers=headers) as response:
            wanted = HTTPStatus.PARTIAL_CONTENT if offset else HTTPStatus.OK
            if offset and response.status == HTTPStatus.OK:
                raise RegistryAnswerError(
                    f"{self._access.host} broke off, and cannot go on where it stopped",
                    remedy="pull again",
                )
            if response.status != wanted:
                raise self._access.fault(response, f"content {ALGORITHM}{blob.sha256}")
            length = response.headers.get("Content-Length")
            if length is not None and length != str(blob.size_bytes - offset):
                raise self._other_size()
            yield response

    def _other_size(self) -> RegistryAnswerError:
        return RegistryAnswerError(
            f"{self._access.host} sends content of another size than the signed index says",
            remedy=PULL_AGAIN,
        )

    def _url(self, blob: Blob) -> str:
        return f"{self._name}/blobs/{ALGORITHM}{blob.sha256}"


def _read(response: urllib3.BaseHTTPResponse, limit_bytes: int) -> bytes:
    parts, rest = [], limit_bytes
    while rest > 0 and (part := response.read(min(STEP_BYTES, rest))):
        parts.append(part)
        rest -= len(part)
    return b"".join(parts)
