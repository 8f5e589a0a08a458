"""What was installed before this start: its record, and what trusted metadata knows of it."""

from __future__ import annotations

import contextlib

from agent.app.device import Device
from agent.errors import StorageError
from agent.install.slots import Slots
from agent.install.store import FileStateStore
from agent.packages import read_index
from wire.errors import FleetError


def adopt(device: Device, slots: Slots) -> None:
    """Let trusted metadata know what is installed."""
    if device.metadata is not None:
        with contextlib.suppress(StorageError):  # the next start does it
            device.metadata.adopt(slots.whole())


def open_store(device: Device, slots: Slots) -> FileStateStore:
    """Open the record of the installs; what an agent with one model left gets the model's name."""
    served, one = None, slots.one_slot()
    if one is not None:
        with contextlib.suppress(FleetError):  # a damaged package serves nothing
            served = read_index(slots.directory(one), one, device.trust).name
    used = bool(slots.whole())
    store = FileStateStore(device.config.state_dir, used=used, served=served)
    if served is not None:
        with contextlib.suppress(StorageError):  # the next start does it
            slots.adopt(served)
    return store
