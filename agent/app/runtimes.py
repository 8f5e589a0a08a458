"""Which runtimes of its profile this device has.

A profile says what can be installed on a kind of device; one device usually has a part of it.

Rules:
- The agent looks once, when it starts, and imports no runtime.
- A variant whose runtime is not there is neither fetched nor served.
"""

from __future__ import annotations

from agent.ports import RecorderPort
from runtime_adapters.installed import installed_runtimes
from wire.profile import DeviceProfile, only_runtimes


def usable_profile(declared: DeviceProfile, recorder: RecorderPort) -> DeviceProfile:
    """Return the profile with the runtimes that are installed here.

    Args:
        declared: The profile of this kind of device.
        recorder: Takes an event if a runtime is missing.

    Returns:
        The profile of this device.
    """
    usable = only_runtimes(declared, installed_runtimes())
    missing = [name for name in declared.runtimes if name not in usable.runtimes]
    if missing:
        has = f"this device has {', '.join(usable.runtimes) or 'no runtime'} of its profile"
        reason = (
            f"{has}, and leaves out variants for {', '.join(missing)}; to add a runtime: "
            f"pip install 'edgefleet[{missing[0]}]' and start the agent again"
        )
        recorder.event("start", reason, {"runtimes": list(usable.runtimes), "missing": missing})
    return usable
