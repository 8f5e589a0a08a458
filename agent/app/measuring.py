"""Makes what measures packages for the fleet, from the configuration; nothing runs yet."""

from __future__ import annotations

from collections.abc import Callable

from agent.app.config import AgentConfig
from agent.install.fetch.fetcher import Fetcher
from agent.install.slots import Slots
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.measure.measurer import Me, Measurer
from agent.measure.package import Packages
from agent.measure.place import Place
from agent.select.adaptations import Adaptations
from telemetry.device.recorder import Recorder
from wire.clock import Clock
from wire.profile import DeviceProfile
from wire.trust.root import Trust


def make_measurer(  # noqa: PLR0913 - one parameter for each part that it connects
    config: AgentConfig,
    profile: DeviceProfile,
    trust: Trust,
    *,
    boot_id: str,
    slots: Slots,
    is_busy: Callable[[], bool],
    fetcher: Fetcher,
    adaptations: Adaptations,
    link: Link,
    interrupts: Interrupts,
    recorder: Recorder,
    clock: Clock,
) -> Measurer:
    """Make what measures packages.

    Args:
        config: The configuration of this device.
        profile: What the device has.
        trust: Who may sign requests and packages.
        boot_id: This start of the agent.
        slots: Where installed packages are.
        is_busy: Tells whether an install is under way, or waits.
        fetcher: Fetches blobs.
        adaptations: Know how the device is.
        link: The connection to the controller.
        interrupts: Ends the work when the agent stops.
        recorder: Takes events.
        clock: Time.

    Returns:
        It, with what a restart interrupted.
    """
    place = Place(config.state_dir)
    packages = Packages(
        profile,
        trust,
        place,
        slots=slots,
        is_busy=is_busy,
        fetcher=fetcher,
        interrupts=interrupts,
    )
    me = Me(
        device=config.device,
        boot_id=boot_id,
        threads=profile.threads,
        trust=trust,
        settings=config.measure,
    )
    measurer = Measurer(
        me,
        place,
        packages,
        adaptations=adaptations,
        publish=link.publish,
        interrupts=interrupts,
        recorder=recorder,
        clock=clock,
    )
    measurer.begin()
    return measurer
