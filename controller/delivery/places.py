"""The places where devices can download a blob, and how a link to each is made. Pure.

Rules:
- A blob lies at every place under the same name as in the controller's own directory of blobs: the
  first two digits, a slash, and the digest.
- The controller uploads nothing: it makes links to what the operator has copied there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from controller.delivery.links import Links
from controller.delivery.presigned import Credentials, presigned_url


class Place(Protocol):
    """Makes links to blobs at one place."""

    @property
    def has_deltas(self) -> bool:
        """Whether it gives what the controller makes by itself, too."""
        ...

    def link(self, device: str, sha256: str, now_s: float, valid_s: int) -> str:
        """Return the link of a device to a blob.

        Args:
            device: Whose link it is.
            sha256: The blob.
            now_s: Wall time.
            valid_s: How long it has to work.
        """
        ...


@dataclass(frozen=True, slots=True)
class CheckedPlace:
    """The controller's own listener, or a server that lets it check each link.

    Args:
        url: What stands before `/blobs/`.
        links: Signs.
    """

    url: str
    links: Links

    @property
    def has_deltas(self) -> bool:
        """It reads the controller's own directory."""
        return True

    def link(self, device: str, sha256: str, now_s: float, valid_s: int) -> str:
        """Return a link that is signed for this device."""
        return self.url.rstrip("/") + self.links.path_of(device, sha256, int(now_s) + valid_s)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A bucket of an S3-compatible store.

    Args:
        url: The bucket's.
        prefix: What the keys begin with.
        region: Of the bucket.
        credentials: Of an account that may read it.
    """

    url: str
    prefix: str
    region: str
    credentials: Credentials

    @property
    def has_deltas(self) -> bool:
        """Nobody uploads them."""
        return False

    def link(self, device: str, sha256: str, now_s: float, valid_s: int) -> str:  # noqa: ARG002 - the store does not know devices
        """Return a presigned link."""
        return presigned_url(
            f"{self.url.rstrip('/')}/{self.prefix}{sha256[:2]}/{sha256}",
            self.credentials,
            region=self.region,
            now_s=now_s,
            valid_s=valid_s,
        )


@dataclass(frozen=True, slots=True)
class OpenPlace:
    """A mirror or a CDN that gives blobs to everybody.

    Args:
        url: What stands before the first two digits.
    """

    url: str

    @property
    def has_deltas(self) -> bool:
        """Nobody uploads them."""
        return False

    def link(self, device: str, sha256: str, now_s: float, valid_s: int) -> str:  # noqa: ARG002 - the same for everybody, for ever
        """Return the address of the blob."""
        return f"{self.url.rstrip('/')}/{sha256[:2]}/{sha256}"
