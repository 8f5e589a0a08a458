"""Tensors in shared memory that the client has registered. Runs in the worker process.

Rules:
- A client's numbers are checked against its region before memory is allocated: the greatest region
  bounds what a tensor may cost.
- Bytes are copied out before the model runs and back after it: a client that changes them meanwhile
  changes nothing that was checked.

Source:
    Triton Inference Server, protocol/extension_shared_memory.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from agent.serve.errors import RegionError
from agent.serve.regions import Region, opened
from runtime_adapters.errors import InputError

REGION: Final = "shared_memory_region"
OFFSET: Final = "shared_memory_offset"
BYTE_SIZE: Final = "shared_memory_byte_size"
SHORTER: Final = "shared memory {!r} has become shorter than its region"
KEEP: Final = "do not change its size while it is registered"


class Place(NamedTuple):
    """Where a tensor lies."""

    region: Region
    offset: int
    """From the beginning of the region, in bytes."""

    byte_size: int

    @property
    def at(self) -> int:
        """From the beginning of the object."""
        return self.region.offset + self.offset

    def parameters(self, size: int) -> dict[str, str | int]:
        """Return what an answer says of an output.

        Args:
            size: How many bytes it has.
        """
        said: dict[str, str | int] = {REGION: self.region.name, BYTE_SIZE: size}
        return said | ({OFFSET: self.offset} if self.offset else {})


def place_of(parameters: Mapping[str, Any], regions: Sequence[Region]) -> Place | None:
    """Return where the parameters of a tensor say that it lies.

    Args:
        parameters: Its parameters in the request.
        regions: What the client has registered.

    Returns:
        The place; None if they do not say that it lies in shared memory.

    Raises:
        InputError: There is no such region, or no such place in it.
    """
    name = parameters.get(REGION)
    if name is None:
        return None
    region = next((region for region in regions if region.name == name), None)
    if region is None:
        raise InputError(
            f"there is no shared memory region {str(name)[:80]!r}",
            remedy="register it with this endpoint, as the user that asks",
        )
    offset, byte_size = parameters.get(OFFSET, 0), parameters.get(BYTE_SIZE)
    if type(offset) is not int or type(byte_size) is not int or offset < 0 or byte_size < 0:
        raise InputError(f"{OFFSET} or {BYTE_SIZE} is not a number of bytes")
    if offset + byte_size > region.byte_size:
        raise InputError(
            f"bytes {offset} to {offset + byte_size} are not within shared memory region "
            f"{region.name[:80]!r} of {region.byte_size} bytes"
        )
    return Place(region, offset, byte_size)


def read(place: Place) -> memoryview:
    """Copy a tensor out of shared memory.

    Args:
        place: Where it lies.

    Returns:
        Its bytes.

    Raises:
        InputError: The memory is gone, too short by now, or cannot be read.
        MemoryError: There is not enough memory for the copy.
    """
    content = np.empty(place.byte_size, np.uint8).data
    done = 0
    with _opened(place, os.O_RDONLY) as descriptor:
        while done < len(content):
            count = os.preadv(descriptor, [content[done:]], place.at + done)
            if count == 0:
                raise InputError(SHORTER.format(place.region.key), remedy=KEEP)
            done += count
    return content


def write(place: Place, content: memoryview) -> None:
    """Copy an output into shared memory.

    Args:
        place: Where it should lie; it has enough bytes.
        content: Its bytes.

    Raises:
        InputError: The memory is gone, too short by now, or cannot be written.
    """
    done = 0
    with _opened(place, os.O_RDWR) as descriptor:
        if os.fstat(descriptor).st_size < place.at + len(content):  # writing would make it longer
            raise InputError(SHORTER.format(place.region.key), remedy=KEEP)
        while done < len(content):
            done += os.pwrite(descriptor, content[done:], place.at + done)


@contextlib.contextmanager
def _opened(place: Place, access: int) -> Iterator[int]:
    """Open the object of a place; what fails with it is the client's.

    Raises:
        InputError: It cannot be opened, read or written.
    """
    try:
        with opened(place.region, access) as descriptor:
            yield descriptor
    except RegionError as exc:
        raise InputError(exc.message, remedy=exc.remedy) from exc
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise InputError(f"shared memory {place.region.key!r} failed: {reason}") from exc
