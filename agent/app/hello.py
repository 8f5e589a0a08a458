"""What the device tells the controller of itself whenever it connects."""

from __future__ import annotations

import msgspec

from agent.app.device import Device
from agent.app.models import Models
from agent.app.sharing import Sharing
from agent.install.store import FileStateStore
from wire.desired import WINDOWS
from wire.presence import Hello
from wire.version import VERSION


def hello(device: Device, store: FileStateStore, models: Models, sharing: Sharing | None) -> Hello:
    """Return what the controller is told: the device, its agent, and what it serves and holds."""
    url = sharing.url if sharing is not None else None
    served = tuple(model.served for model in models)
    first = served[0] if served else None
    has_all = device.profile.runtimes == device.declared.runtimes
    return Hello(
        device=device.config.device,
        boot_id=device.boot_id,
        agent_version=VERSION,
        profile=device.declared,
        runtimes=msgspec.UNSET if has_all else device.profile.runtimes,
        peer_url=msgspec.UNSET if url is None else url,
        revision=store.state.revision,
        release=first.release if first else None,
        variant=first.variant if first else None,
        models=served,
        desired_form=WINDOWS,
        shadows=msgspec.UNSET if device.config.shadow.allow else False,
        metadata=msgspec.UNSET if device.metadata is None else device.metadata.versions,
    )
