"""Makes what sends telemetry, from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from agent.app.config import AgentConfig
from agent.link.connection import Link
from agent.link.controller_time import ControllerTime
from agent.link.telemetry import TelemetryPump
from telemetry.device.recorder import Recorder
from telemetry.device.spool import Spool
from wire.clock import Clock, steady_s
from wire.policy import PolicySpec, report_every_s

SPOOL_FILE: Final = "telemetry.db"


def make_pump(
    config: AgentConfig,
    link: Link,
    *,
    boot_id: str,
    policies: Callable[[], Iterable[PolicySpec]],
    recorder: Recorder,
    clock: Clock,
) -> TelemetryPump:
    """Make what brings figures and events to the controller.

    Args:
        config: The configuration of this device.
        link: The connection to the controller.
        boot_id: This start of the agent.
        policies: Return those of the models, which may set how often figures are reported.
        recorder: Has the figures.
        clock: Time.

    Returns:
        The pump; its spool is open.

    Raises:
        FleetError: The spool cannot be used.
    """
    spool = Spool(
        config.state_dir / SPOOL_FILE,
        device=config.device,
        boot_id=boot_id,
        limit_bytes=config.spool_bytes,
        clock=clock,
    )
    return TelemetryPump(
        config.device,
        recorder=recorder,
        spool=spool,
        link=link,
        clock=clock,
        interval_s=lambda: report_every_s(config.telemetry_interval_s, policies()),
        time=ControllerTime(boot_id, clock, steady_s),
    )
